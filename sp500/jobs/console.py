"""The command lines behind scripts/upload-data, scripts/fetch-results and scripts/deploy: parse, call, print."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import FrameType

from sp500.errors import ConfigError, ResourcesError, RunExists, SP500Error
from sp500.jobs import claims, rollout, transfer_pod
from sp500.jobs.kubectl import Kubectl

CLUSTER = "sp500"


def main(argv: Sequence[str]) -> int:
    """Run one command to its exit code."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _stop)
    arguments = _parser().parse_args(argv)
    try:
        arguments.act(arguments)
    except SP500Error as error:
        _say(f"{type(error).__name__}: {error}")
        return error.exit_code
    except OSError as error:  # a full disk, a folder that may not be read: its text names the file
        _say(f"{type(error).__name__}: {error}")
        return 1
    return 0


def _upload(arguments: argparse.Namespace) -> None:
    kubectl = Kubectl(arguments.namespace, arguments.context)
    folder: Path = arguments.folder
    _send(kubectl, arguments, folder, arguments.name or folder.resolve().name, overwrite=arguments.overwrite)


def _send(kubectl: Kubectl, arguments: argparse.Namespace, folder: Path, name: str, *, overwrite: bool) -> None:
    if not folder.is_dir():
        raise ConfigError(f"{folder}: no such folder to upload")
    wanted = claims.contents(folder, name)
    with _pod(kubectl, arguments, "sp500-data", claims.DATA, read_only=False) as pod:
        sent = claims.upload(kubectl, pod, folder, wanted, name, overwrite=overwrite)
    told = f"uploaded: {len(wanted)} files, checksums equal" if sent else "is there already, file by file"
    print(f"{claims.DATA}/{name} {told}")


def _fetch(arguments: argparse.Namespace) -> None:
    kubectl = Kubectl(arguments.namespace, arguments.context)
    with _pod(kubectl, arguments, "sp500-runs", claims.RUNS, read_only=True) as pod:
        result = claims.fetch(kubectl, pod, arguments.runs_dir, arguments.names, overwrite=arguments.overwrite)
    for name in result.new:
        print(f"{arguments.runs_dir / name} fetched, checksums equal")
    for name in result.same:
        print(f"{arguments.runs_dir / name} is here already, file by file")
    if result.kept:
        raise RunExists(
            f"{', '.join(result.kept)}: another run of that name is in {arguments.runs_dir} and was kept;"
            " --overwrite replaces it, --runs-dir OTHER fetches into another folder"
        )
    if not result.new and not result.same:
        print("no run has ended on the claim yet")


def _deploy(arguments: argparse.Namespace) -> None:
    folder = next(filter(Path.is_dir, (arguments.overlays / arguments.overlay, Path(arguments.overlay))), None)
    if folder is None:
        known = ", ".join(sorted(path.name for path in arguments.overlays.glob("*/"))) or "none"
        raise ConfigError(f"{arguments.overlay}: neither a folder nor an overlay (those are: {known})")
    text = Kubectl("default", arguments.context).text("kustomize", str(folder))
    overlay = rollout.rendered(text, str(folder))
    kubectl = Kubectl(overlay.namespace, arguments.context)
    print(rollout.apply(kubectl, overlay), end="")
    for data in arguments.data:
        _send(kubectl, arguments, data, data.resolve().name, overwrite=False)
    rollout.wait(kubectl, overlay, seconds=arguments.timeout, say=_say)
    print(f"RayCluster {overlay.name} in namespace {overlay.namespace} is ready")


def _pod(
    kubectl: Kubectl, arguments: argparse.Namespace, claim: str, mount: str, *, read_only: bool
) -> AbstractContextManager[str]:
    if arguments.image:
        image = transfer_pod.Image(arguments.image)
    elif cluster := kubectl.document("get", "raycluster", CLUSTER):
        image = transfer_pod.image_of(cluster)
    else:
        raise ResourcesError(
            f"namespace {kubectl.namespace} has no RayCluster {CLUSTER} whose image the transfer pod could run:"
            " scripts/deploy makes it, or name an image with tar and sha256sum: --image"
        )
    return transfer_pod.running(kubectl, claim, mount, image, read_only=read_only, seconds=arguments.timeout, say=_say)


def _parser() -> argparse.ArgumentParser:
    everywhere = argparse.ArgumentParser(add_help=False)
    everywhere.add_argument("--context", help="context of your kubeconfig (default: the current one)")
    everywhere.add_argument("--image", help="image of the transfer pod (default: the Ray head's)")
    everywhere.add_argument(
        "--timeout",
        type=float,
        default=600.0,
        metavar="SECONDS",
        help="how long pods may take to get ready (default: 600)",
    )
    named = argparse.ArgumentParser(add_help=False)
    named.add_argument("--namespace", default="sp500", help="default: sp500")
    named.add_argument("--overwrite", action="store_true", help="replace what is there under that name")
    parser = argparse.ArgumentParser(prog="scripts", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    upload = commands.add_parser("upload-data", parents=[everywhere, named], help="a folder onto the data claim")
    upload.add_argument("folder", type=Path, help="pods find it as /data/NAME")
    upload.add_argument("--name", help="default: the folder's own")
    upload.set_defaults(act=_upload)

    fetch = commands.add_parser("fetch-results", parents=[everywhere, named], help="ended runs from the runs claim")
    fetch.add_argument("names", nargs="*", metavar="RUN", help="default: all that have ended")
    fetch.add_argument("--runs-dir", type=Path, default=Path("runs"), help="default: runs")
    fetch.set_defaults(act=_fetch)

    deploy = commands.add_parser("deploy", parents=[everywhere], help="an overlay onto an existing cluster")
    deploy.add_argument("overlay", help="name of an overlay, or a folder for kustomize")
    deploy.add_argument("--data", type=Path, action="append", default=[], metavar="DIR", help="upload this folder, too")
    deploy.add_argument("--overlays", type=Path, default=Path("cluster/overlays"), help=argparse.SUPPRESS)
    deploy.set_defaults(act=_deploy)
    return parser


def _stop(number: int, frame: FrameType | None) -> None:
    # A second signal must not cut short what deletes the pod.
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.SIG_IGN)
    raise SystemExit(128 + number)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
