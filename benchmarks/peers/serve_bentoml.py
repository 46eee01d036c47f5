"""A service of BentoML: https://docs.bentoml.com/en/latest/get-started/hello-world.html."""

from typing import Any

import bentoml
from served_model import answer, load_model


@bentoml.service(workers=1, logging={"access": {"enabled": False}})
class Windows:
    """Answers windows."""

    def __init__(self) -> None:
        self.model = load_model()

    @bentoml.api(route="/v1/windows")
    def windows(self, x: list[list[list[float]]]) -> dict[str, Any]:
        """Answer with the outputs."""
        return answer(self.model, x)
