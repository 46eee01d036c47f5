"""kubectl over folders: a claim is a folder, a pod a file, and `exec` runs the real tar, find and sha256sum there.

The folder $FAKE_CLUSTER holds claims/NAME/, pods/NAME.json (those that live), raycluster.json, events.json, operator (a
file: it is installed), turns.json (the operator acts at each look at the pods), log (a line per call), and fault, the
fault to play: `unready`, `damage`, `break`, `cut`, `hang`, `killed` (in the middle of replacing a folder),
`unreadable RUN` (tar cannot open it) or `lost` (the pod goes away).
"""

import json
import os
import re
import sys
from pathlib import Path

import fake_operator

HERE = Path(os.environ["FAKE_CLUSTER"])
FAULT = (HERE / "fault").read_text() if (HERE / "fault").exists() else ""
UNREADY = {
    "conditions": [{"type": "Ready", "status": "False"}],
    "containerStatuses": [
        {"name": "transfer", "state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}}
    ],
}
OBJECTS = {"rayservice": "RayService", "secret": "Secret", "persistentvolumeclaim": "PersistentVolumeClaim"}
ANSWERS = {
    "observedGeneration": 1,
    "numServeEndpoints": 1,
    "activeServiceStatus": {"applicationStatuses": {"sp500": {"status": "RUNNING"}}},
    "conditions": [{"type": "Ready", "status": "True"}],
}
READY = {"conditions": [{"type": "Ready", "status": "True"}]}


def fail(message):
    print(message, file=sys.stderr)
    sys.exit(1)


def read(path):
    return json.loads(path.read_text()) if path.exists() else {}


def path_of(kind, name):
    if kind == "RayCluster":
        return HERE / "raycluster.json"
    folder = HERE / "pods" if kind == "Pod" else HERE / "objects" / kind
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{name}.json"


def pods():
    return [json.loads(path.read_text()) for path in sorted((HERE / "pods").iterdir())]


def documents(text):
    if text.startswith("{"):
        return [json.loads(text)]
    sys.path.append(os.environ["FAKE_PACKAGES"])  # started without them, since most calls need none
    import yaml

    return [one for one in yaml.safe_load_all(text) if one]


def apply(*flags):
    dry_run, answers, refusals = "--dry-run=server" in flags, [], []
    for document in documents(sys.stdin.read()):
        kind, name = document["kind"], document["metadata"]["name"]
        namespace = document["metadata"].get("namespace")
        old, path = read(path_of(kind, name)), path_of(kind, name)
        if namespace and not path_of("Namespace", namespace).exists():
            refusals.append(f'Error from server (NotFound): namespaces "{namespace}" not found')
            continue
        if kind == "PodMonitor":
            refusals.append('no matches for kind "PodMonitor" in version "monitoring.coreos.com/v1"')
            continue
        if refused := fake_operator.refusal(old, document):
            refusals.append(refused)
            continue
        new = fake_operator.stored(old, document)
        if kind == "Pod":
            new["status"] = UNREADY if FAULT == "unready" else READY
        answers.append(new)
        if not dry_run:
            path.write_text(json.dumps(new))
        if "--output=json" not in flags:
            what = ("unchanged" if old.get("spec") == new.get("spec") else "configured") if old else "created"
            print(f"{kind.lower()}/{name} {what}")
    if "--output=json" in flags:
        print(json.dumps({"kind": "List", "items": answers}))
    if refusals:
        fail("\n".join(refusals))


def reconcile():
    """The operator's next turn, where the test has one."""
    if (HERE / "turns.json").exists() and (cluster := read(HERE / "raycluster.json")).get("kind"):
        state = read(HERE / "turns.json")
        ray = [pod for pod in pods() if "ray.io/cluster" in pod["metadata"].get("labels", {})]
        cluster, left = fake_operator.reconcile(cluster, ray, state)
        for pod in ray:
            path_of("Pod", pod["metadata"]["name"]).unlink()
        for pod in left:
            path_of("Pod", pod["metadata"]["name"]).write_text(json.dumps(pod))
        (HERE / "raycluster.json").write_text(json.dumps(cluster))
        (HERE / "turns.json").write_text(json.dumps(state))


def get(kind, *rest):
    if kind == "--raw=/version":
        print("{}")
    elif kind == "raycluster":
        print((HERE / "raycluster.json").read_text() if (HERE / "raycluster.json").exists() else "")
    elif kind in OBJECTS:
        found = read(path_of(OBJECTS[kind], rest[0]))
        if kind == "rayservice" and found:
            found["metadata"]["generation"] = 1
            found["status"] = ANSWERS
        print(json.dumps(found) if found else "")
    elif kind == "namespace":
        path = path_of("Namespace", rest[0])
        print(path.read_text() if path.exists() else "")
    elif kind == "events":
        print((HERE / "events.json").read_text())
    elif "field-selector" in rest[0]:
        wanted = re.sub(r".*metadata\.name=", "", rest[0])
        print(json.dumps({"items": [pod for pod in pods() if wanted in pod["metadata"]["name"]]}))
    else:
        reconcile()
        wanted = re.sub(r".*ray\.io/cluster=", "", rest[0])
        labels = [(pod, pod["metadata"].get("labels", {})) for pod in pods()]
        print(json.dumps({"items": [pod for pod, own in labels if own.get("ray.io/cluster") == wanted]}))


def execute(*words):
    import subprocess  # here, since most calls need none

    between = words.index("--")
    command = list(words[between + 1 :])
    pod = next((pod for pod in pods() if pod["metadata"]["name"] == words[between - 1]), None) or fail("no such pod")
    volume = pod["spec"]["containers"][0]["volumeMounts"][0]
    claim = HERE / "claims" / pod["spec"]["volumes"][0]["persistentVolumeClaim"]["claimName"]
    if volume.get("readOnly") and command[0] not in {"find", "tar", "true"}:
        fail("read-only file system")
    if FAULT == "lost" and command[0] == "tar":
        (HERE / "pods" / f"{pod['metadata']['name']}.json").unlink()
        fail("no such pod")
    if command[0] == "tar" and f"unreadable {command[-1].removeprefix('./')}" == FAULT:
        fail(f"tar: {command[-1]}: Cannot open: Permission denied")
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
    if done.returncode:
        print(f"command terminated with exit code {abs(done.returncode)}", file=sys.stderr)
    sys.exit(abs(done.returncode))


def spoilt(stream):
    return stream.replace(b"close", b"clqse").replace(b'"status"', b'"statvs"')


def main(verb, *words):
    with (HERE / "log").open("a") as log:
        print(verb, *words, file=log)
    if verb in {"apply", "create"}:
        apply(*words)
    elif verb == "get":
        get(*words)
    elif verb == "exec":
        execute(*words)
    elif verb == "delete":
        (HERE / "pods" / f"{words[1]}.json").unlink(missing_ok=True)
    elif verb == "api-resources":
        print("rayclusters.ray.io\nrayjobs.ray.io\nrayservices.ray.io" if (HERE / "operator").exists() else "")
    elif verb == "kustomize":
        print((Path(words[0]) / "rendered.yaml").read_text())
    else:
        fail(f"unknown command {verb}")


main(*(word for word in sys.argv[1:] if not word.startswith(("--namespace=", "--context="))))
