"""A server of LitServe: https://lightning.ai/docs/litserve/home/get-started."""

import sys
from typing import Any

import litserve
from served_model import answer, load_model


class Windows(litserve.LitAPI):
    """Answers windows."""

    def setup(self, device: str) -> None:
        """Load the model."""
        self.model = load_model()

    def predict(self, request: dict[str, Any]) -> dict[str, Any]:
        """Answer with the outputs."""
        return answer(self.model, request["x"])


if __name__ == "__main__":
    server = litserve.LitServer(Windows(api_path="/v1/windows"), accelerator="cpu", workers_per_device=1)
    server.run(host="127.0.0.1", port=int(sys.argv[1]), log_level="warning", generate_client_file=False)
