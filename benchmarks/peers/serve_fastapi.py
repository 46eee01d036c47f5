"""A bare FastAPI application: https://fastapi.tiangolo.com/tutorial/body/.

`async def`: the model runs in the event loop, which costs less here than a thread.
"""

from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel
from served_model import answer, load_model

app, model = FastAPI(), load_model()


class Windows(BaseModel):
    """Windows [window, day, feature]."""

    x: list[list[list[float]]]


@app.post("/v1/windows")
async def windows(body: Windows) -> dict[str, Any]:
    """Answer with the outputs."""
    return answer(model, body.x)
