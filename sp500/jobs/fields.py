"""Types of the fields of a job. Each checks its text once, on input, and its errors say what was expected."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated

from pydantic import AfterValidator, Field

from sp500.credentials import has_password
from sp500.jobs import names
from sp500.machine.units import size_bytes
from sp500.schema import Metavar

# The largest number of Kubernetes' int32 fields.
MOST = 2**31 - 1
# A raylet, its agents and one process without much in it.
LEAST_MEMORY = 256 * 2**20

# The last word of a name: also of MYPASS and DBPASSWORD, in which nothing separates it. KEY and PAT have to be whole
# words, since MONKEY and FORMAT are no secrets.
SECRET_NAME = re.compile(
    r"(TOKEN|PASS|PASSWORD|PASSWD|PASSPHRASE|PWD|SECRET|CREDENTIALS?|APIKEY)$|(^|_)(KEY|PAT|AUTH|DSN)$", re.IGNORECASE
)
# Shells set these to the current and the last folder.
FOLDERS = {"PWD", "OLDPWD"}
# What the operator sets in its pods, or forbids there.
RESERVED = re.compile(
    r"KUBERAY_.*|FQ_RAY_IP|REDIS_(USERNAME|PASSWORD)|RAY_(ADDRESS|AUTH_MODE|AUTH_TOKEN.*|CLUSTER_NAME.*|IP|PORT|"
    r"CLOUD_INSTANCE_ID|NODE_TYPE_NAME|REDIS_ADDRESS|USE_TLS|TLS_.*|enable_autoscaler_v2|gcs_storage.*)"
)
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
SECRET_KEY = re.compile(r"[-._a-zA-Z0-9]+")
IMAGE = re.compile(r"(?!.*:latest$)[\w./:-]+?(:\w[\w.-]{0,127}|@sha256:[0-9a-f]{64})", re.ASCII)
ARCHIVE = re.compile(r"(https|s3|gs)://[\w./%+~-]+\.zip", re.ASCII)
URL = re.compile(r"https?://[\w.\[\]:-]+(/[!-~]*)?", re.ASCII)
NAME = "invalid Kubernetes name {{}}: use at most {} of a-z, {}, with a letter or digit at both ends"
EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")


def _check_command(argv: tuple[str, ...]) -> tuple[str, ...]:
    if not argv or not argv[0]:
        raise ValueError("is empty; set a command, for example: -- sp500 tune")
    if torn := [word for word in argv if not word.isprintable()]:
        raise ValueError(f"{torn[0]!r:.60} has a control character; put such text into a file")
    _refuse_passwords(argv)
    return argv


def _matching(pattern: re.Pattern[str], message: str) -> AfterValidator:
    """Accept texts that match as a whole; `message` says for others what is wrong and what is allowed."""

    def check(text: str) -> str:
        if not pattern.fullmatch(text):
            raise ValueError(message.format(f"{text!r:.80}"))
        return text

    return AfterValidator(check)


def _check_memory(size: str) -> str:
    if not LEAST_MEMORY <= size_bytes(size) < 2**63:
        raise ValueError(f"invalid worker memory {size!r}: expected at least 256MiB")
    return size


def _check_variables(variables: dict[str, str]) -> dict[str, str]:
    for name in variables:
        if not VARIABLE.fullmatch(name):
            raise ValueError(
                f"invalid variable name {name!r}: use letters, digits and '_', and do not start with a digit"
            )
        if RESERVED.fullmatch(name):
            raise ValueError(f"{name} is the operator's own; leave it out")
    return variables


def _refuse_secrets(env: dict[str, str]) -> dict[str, str]:
    if secret := [name for name in env if SECRET_NAME.search(name) and name not in FOLDERS]:
        raise ValueError(f"{secret[0]} looks like a secret; set {secret[0]}=SECRET/KEY under secrets instead")
    _refuse_passwords(env.values())
    return env


def _check_references(secrets: dict[str, str]) -> dict[str, str]:
    for name, reference in secrets.items():
        secret, _, key = reference.partition("/")
        if not names.SUBDOMAIN.fullmatch(secret) or not SECRET_KEY.fullmatch(key):
            # What came may be the secret itself, so it is not repeated.
            raise ValueError(
                f"{name} is not a reference: expected SECRET/KEY, a Secret's name and a key in it, for example hf/token"
            )
    return secrets


def _check_labels(labels: dict[str, str]) -> dict[str, str]:
    for key, value in labels.items():
        if not names.LABEL_KEY.fullmatch(key) or not names.LABEL_VALUE.fullmatch(value):
            raise ValueError(
                f"invalid label {key}={value}: use at most 63 letters, digits, '-', '_' and '.' on each side"
            )
    return labels


def _check_taint(text: str) -> str:
    label, _, effect = text.rpartition(":")
    key, _, value = label.partition("=")
    if effect not in EFFECTS or not names.LABEL_KEY.fullmatch(key) or not names.LABEL_VALUE.fullmatch(value):
        raise ValueError(f"invalid taint {text!r}: expected KEY[=VALUE]:EFFECT with an effect of {', '.join(EFFECTS)}")
    return text


def _refuse_passwords(words: Iterable[str]) -> None:
    if any(has_password(word) for word in words):
        raise ValueError("an address holds a password (://user:password@); set it under secrets")


Command = Annotated[tuple[str, ...], AfterValidator(_check_command)]
JobName = Annotated[
    str,
    _matching(
        re.compile(rf"(?=.{{1,{names.LONGEST['RayJob']}}}$){names.DNS_1035.pattern}"),
        f"invalid job name {{}}: use at most {names.LONGEST['RayJob']} of a-z, 0-9 and '-', and start with a letter",
    ),
]
Positive = Annotated[int, Field(gt=0, le=MOST)]
Whole = Annotated[int, Field(ge=0, le=MOST)]
Retries = Annotated[int, Field(ge=0, le=99)]
Priority = Annotated[int, Field(ge=-1000, le=1000)]
Memory = Annotated[str, AfterValidator(_check_memory)]
Environment = Annotated[dict[str, str], AfterValidator(_check_variables), AfterValidator(_refuse_secrets)]
SecretReferences = Annotated[
    dict[str, str], AfterValidator(_check_variables), AfterValidator(_check_references), Metavar("NAME=SECRET/KEY")
]
Image = Annotated[str, _matching(IMAGE, "{} does not pin an image; use a tag other than latest, or @sha256:...")]
Archive = Annotated[
    str,
    _matching(ARCHIVE, "{} is not an https://, s3:// or gs:// URI of a .zip; --mode InteractiveMode accepts a folder"),
]
Url = Annotated[
    str,
    _matching(
        URL, "is not a webhook URL: expected http:// or https:// and a host, for example https://hooks.example/jobs"
    ),
]
Label = Annotated[str, _matching(names.DNS_1123, NAME.format(63, "0-9 and '-'"))]
ObjectName = Annotated[str, _matching(names.SUBDOMAIN, NAME.format(253, "0-9, '-' and '.'"))]
Labels = Annotated[dict[str, str], AfterValidator(_check_labels), Metavar("KEY=VALUE")]
Taint = Annotated[str, AfterValidator(_check_taint)]
