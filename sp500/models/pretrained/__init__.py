"""Models of other libraries, which optional extras install: transformers and timm."""
