"""Problems that run through the loop."""
