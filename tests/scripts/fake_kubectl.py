"""kubectl over folders: a claim is a folder, a pod a file, and `exec` runs the real tar, find and sha256sum there.

The folder $FAKE_CLUSTER holds claims/NAME/, pods/NAME.json (those that live), raycluster.json, events.json, operator (a
file: it is installed), log (a line per call), and the fault to play: `unready`, `damage`, `break`, `cut`, `hang`
or `killed` (in the middle of replacing a folder).
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import yaml

HERE = Path(os.environ["FAKE_CLUSTER"])
FAULT = (HERE / "fault").read_text() if (HERE / "fault").exists() else ""
UNREADY = {
    "conditions": [{"type": "Ready", "status": "False"}],
    "containerStatuses": [
        {"name": "transfer", "state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}}
    ],
}
READY = {"conditions": [{"type": "Ready", "status": "True"}]}


def fail(message):
    print(f"error: {message}", file=sys.stderr)
    sys.exit(1)


def pods():
    return [json.loads(path.read_text()) for path in sorted((HERE / "pods").iterdir())]


def apply():
    for document in yaml.safe_load_all(sys.stdin):
        name = document["metadata"]["name"]
        if document["kind"] == "Pod":
            document["status"] = UNREADY if FAULT == "unready" else READY
            (HERE / "pods" / f"{name}.json").write_text(json.dumps(document))
        print(f"{document['kind'].lower()}/{name} configured")


def get(kind, *rest):
    if kind == "raycluster":
        print((HERE / "raycluster.json").read_text() if (HERE / "raycluster.json").exists() else "")
    elif kind == "events":
        print((HERE / "events.json").read_text())
    else:
        wanted = re.sub(r".*metadata\.name=", "", rest[0]) if "field-selector" in rest[0] else ""
        print(json.dumps({"items": [pod for pod in pods() if wanted in pod["metadata"]["name"]]}))


def execute(*words):
    between = words.index("--")
    command = list(words[between + 1 :])
    pod = next((pod for pod in pods() if pod["metadata"]["name"] == words[between - 1]), None) or fail("no such pod")
    volume = pod["spec"]["containers"][0]["volumeMounts"][0]
    claim = HERE / "claims" / pod["spec"]["volumes"][0]["persistentVolumeClaim"]["claimName"]
    if volume.get("readOnly") and command[0] not in {"find", "tar"}:
        fail("read-only file system")
    command = [re.sub(rf"^{volume['mountPath']}(?=/|$)", str(claim), word) for word in command]
    given = sys.stdin.buffer.read() if "--stdin" in words and FAULT not in {"break", "hang"} else b""
    if command[0] == "tar" and "--stdin" in words and FAULT == "break":
        sys.stdin.buffer.read(512)
        fail("unexpected EOF")
    if command[0] == "tar" and FAULT == "hang":
        (HERE / "reached").write_text("here")  # a pipe whose other end the test holds
        sys.stdin.buffer.read()
        fail("hung up")
    given = spoilt(given) if FAULT == "damage" else given
    path = f"{HERE / 'deadly'}:{os.environ['PATH']}" if FAULT == "killed" else os.environ["PATH"]
    environment = {**os.environ, "PATH": path}
    done = subprocess.run(command, input=given, stdout=subprocess.PIPE, check=False, env=environment)
    answer = done.stdout
    if command[0] == "tar" and "--stdin" not in words:
        answer = {"damage": spoilt(answer), "break": answer[:700], "cut": answer[:700]}.get(FAULT, answer)
    else:
        answer = answer.replace(str(claim).encode(), volume["mountPath"].encode())
    sys.stdout.buffer.write(answer)
    sys.stdout.flush()
    if command[0] == "tar" and FAULT == "break":
        fail("unexpected EOF")
    sys.exit(abs(done.returncode))


def spoilt(stream):
    return stream.replace(b"close", b"clqse")


def main(verb, *words):
    with (HERE / "log").open("a") as log:
        print(verb, *words, file=log)
    if verb == "apply":
        apply()
    elif verb == "get":
        get(*words)
    elif verb == "exec":
        execute(*words)
    elif verb == "delete":
        (HERE / "pods" / f"{words[1]}.json").unlink(missing_ok=True)
    elif verb == "api-resources":
        print("rayclusters.ray.io\nrayjobs.ray.io" if (HERE / "operator").exists() else "")
    elif verb == "kustomize":
        print((Path(words[0]) / "rendered.yaml").read_text())
    else:
        fail(f"unknown command {verb}")


main(*(word for word in sys.argv[1:] if not word.startswith(("--namespace=", "--context="))))
