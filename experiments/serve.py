"""Answer over HTTP from replicas on the Ray cluster that this job runs on, until the job is stopped."""

from __future__ import annotations

import sys

from sp500.commands.serving.serve import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], prog="experiments/serve.py", on="ray"))
