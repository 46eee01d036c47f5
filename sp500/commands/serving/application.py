"""The application of every replica of Ray Serve, here and in a RayService: `import_path` of cluster/rayservice.yaml."""

from __future__ import annotations

import gc
from functools import partial
from pathlib import Path

from pydantic import Field

from sp500.commands import folders
from sp500.config import Frozen
from sp500.distributed import serve
from sp500.jobs.manifests.rayservice import PORT
from sp500.serving.registry import DEFAULT


class Arguments(Frozen):
    """`args` of the application in serveConfigV2."""

    name: str = DEFAULT
    """A model, or a run."""
    runs_dir: Path = Field(default_factory=folders.default_runs)
    """Folder of the runs. $SP500_RUNS_DIR sets another default."""
    key_file: Path
    """File with the key. Without it all requests that need one are refused; it is read again while the server runs."""
    trust_source: bool = False
    """Run the Python files in a run's folder (source/), even if no command on this machine has used them. Only for runs
    you trust."""


def build(args: dict[str, object]) -> serve.Application:
    """Return the application, for Ray Serve to deploy. Raises ValidationError for `args` that are not `Arguments`."""
    arguments = Arguments.model_validate(args)
    factory = partial(
        make, arguments.runs_dir.absolute(), arguments.name, "", arguments.key_file, arguments.trust_source
    )
    return serve.application(factory, gate=PORT)


def make(runs: Path, name: str, key: str, key_file: Path | None, trust_source: bool) -> object:
    """Return the HTTP application of one replica."""
    from sp500.serving import app, models
    from sp500.serving.guard import Key

    served, answers = models.open_model(runs, name, trust_source=trust_source)
    application = app.create(served, key=Key(key, key_file), answers=answers, tells_id=False)
    gc.freeze()  # as `sp500 serve` does
    return application
