"""The Ray cluster that a script runs on: the one around it, or one of its own on this machine."""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import shlex
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import TypeVar
from unittest import mock

import grpc
import ray
from ray._private import auto_init_hook, ray_constants, services
from ray._private.grpc_utils import init_grpc_channel
from ray._private.node import Node
from ray.job_config import JobConfig

from sp500.distributed import capacity
from sp500.errors import ResourcesError, attempt
from sp500.machine import ray_address
from sp500.machine.cores import usable_cores
from sp500.machine.ray_token import ensure_ray_token

T = TypeVar("T")
Raylets = tuple[int, ...]
"""Process numbers of the raylets of simulated nodes; of others none."""
# https://docs.python.org/3/c-api/sys.html: handlers as the kernel has them, which any thread may set.
_read_handler = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_int)(("PyOS_getsig", ctypes.pythonapi))
_set_handler = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)(("PyOS_setsig", ctypes.pythonapi))
log = logging.getLogger(__name__)
# Set while this process has nodes of its own.
_owning = threading.Event()

# Set before Ray starts its processes. Ray's own default for OMP_NUM_THREADS counts a task's CPUs, and a fraction of a
# CPU would mean none; torch's threads are set by the loop. A group of workers that lost a node waits for the next one,
# whose image and start take longer than Ray's own 60 s.
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "600",
    # Nothing is sent to Ray's makers, and Ray Data starts no process to collect it.
    "RAY_USAGE_STATS_ENABLED": "0",
    # On macOS Ray starts nodes of a cluster only with it; on Linux it has no meaning.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "1",
}
# One machine of our own is not preempted by a cloud, and its controller may ask twice a second if workers are done.
LOCAL_ENVIRONMENT = {
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",
    # A node of one CPU keeps one idle process; readers would be started again, seconds each, at every pass.
    "RAY_idle_worker_killing_time_threshold_ms": "600000",
    # Actors start processes of their own: those that Ray starts ahead for tasks cost 0.6 s of a core each.
    "RAY_prestart_worker_first_driver": "0",
    # Ray's default of 15 leaves its workers a thirtieth of a core next to anything else that runs, and makes the arm on
    # Ray incomparable to those without it.
    "RAY_worker_niceness": "0",
    # They are not collected from a cluster that ends with this process.
    "RAY_TRAIN_METRICS_ENABLED": "0",
    "RAY_TRAIN_ENABLE_CONTROLLER_STRUCTURED_LOGGING": "0",
    "RAY_TRAIN_ENABLE_WORKER_STRUCTURED_LOGGING": "0",
}


JOINABLE = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
# Ray gives its raylet 30 s to answer, which it exceeds if several others use each core (docs/LOG.md).
STARTS, SLOW_START = 3, "node timed out during startup"
# How long an interrupted call may take to end by itself.
STOP_SECONDS = 10
# A cluster whose head starts again answers in this time.
ANSWER_SECONDS = 30
# Ray's sockets lie in its session's folder, and the kernel takes 107 characters of a socket's path. Of these the folder
# made here, Ray's own two in it and the longest name take 87.
SOCKET_ROOM = 107 - 87


@contextmanager
def connect() -> Iterator[Raylets]:
    """Connect to Ray for the block: to the cluster of RAY_ADDRESS or of an earlier call, else to a new one here."""
    if ray.is_initialized():
        yield ()
        return
    address = ray_address.read()
    ray_address.check(address)
    with _join(address) if address else _start_local():
        try:
            yield ()
        finally:
            shut_down()


class BackgroundRay:
    """A connection to Ray that begins and ends in a thread of its own, while this one continues.

    One thread does both: the kernel ends the processes of a local cluster with the thread that started them.
    """

    def __init__(self, connecting: AbstractContextManager[Raylets]) -> None:
        self._connecting = connecting
        self._started: Future[Raylets] = Future()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._hold, name="ray-session")
        self._thread.start()

    def wait(self) -> Raylets:
        """Wait until Ray is connected. Raises ResourcesError, or what kept it from that."""
        return self._started.result()

    @contextmanager
    def connect(self) -> Iterator[Raylets]:
        """Wait until Ray is connected, for the block, after which it begins to end."""
        raylets = self.wait()
        try:
            yield raylets
        finally:
            # Handles of actors that Python frees later, while Ray ends in its thread, would end the process.
            gc.collect()
            self.begin_end()

    def count_cpus(self) -> int:
        """Return how many CPUs the cluster can have, once it is connected."""
        self.wait()
        return int(capacity.most()["CPU"])

    def begin_end(self) -> None:
        """Begin to end Ray, without waiting for it."""
        self._ending.set()

    def end(self) -> None:
        """End Ray, and wait until it has ended."""
        self._ending.set()
        self._thread.join()

    def _hold(self) -> None:
        try:
            with self._connecting as raylets:
                self._started.set_result(raylets)
                self._ending.wait()
        except BaseException as error:  # of the thread: `wait` raises it in the caller, or it is raised here
            if self._started.done():
                raise
            self._started.set_exception(error)


@contextmanager
def start_in_background(nodes: AbstractContextManager[Raylets] | None = None) -> Iterator[BackgroundRay]:
    """Start these nodes, or Ray as `connect` does, next to the block; it ends with the block at the latest."""
    # A wait for a cluster that is not there has to notice a signal, which only the main thread does.
    if nodes is None and (address := ray_address.read()):
        ray_address.check(address)
        with _name_address(address):
            _wait_for_answer(address)
    background = BackgroundRay(nodes or connect())
    try:
        yield background
    finally:
        background.end()


def shut_down() -> None:
    """End Ray in this process. An error there is logged, and hides neither a result nor an earlier error or signal."""
    attempt(_shut_down, lambda error: log.warning("Ray did not end as it should: %s", error))


def _shut_down() -> None:
    if ray.is_initialized():
        capacity.withdraw_held()
    with keep_signal_handlers():
        ray.shutdown()


@contextmanager
def _join(address: str) -> Iterator[None]:
    set_defaults(ENVIRONMENT)
    with _name_address(address):
        _wait_for_answer(address)
        _init(address)
    yield


@contextmanager
def _name_address(address: str) -> Iterator[None]:
    """Raise ResourcesError if the cluster of this address cannot be reached in the block."""
    try:
        yield
    except (ConnectionError, grpc.FutureTimeoutError) as error:
        raise ResourcesError(
            f"no Ray cluster answers at {ray_address.VARIABLE} = {address}"
            + (f" ({error})" if str(error) else f" within {ANSWER_SECONDS} s")
            + f". Start it or correct the address; unset {ray_address.VARIABLE} to run on this machine"
        ) from error


def _wait_for_answer(address: str) -> None:
    """Wait until a server of gRPC answers. `ray.init` would ask for ever, and not notice a signal.

    Raises ConnectionError without a cluster on this machine, FutureTimeoutError if none answers in time.
    """
    if "://" in address:  # the client of ray:// has a limit of its own
        return
    where = services.canonicalize_bootstrap_address(address)  # as in `ray.init`
    with init_grpc_channel(where, [("grpc.enable_http_proxy", 0)]) as channel:
        grpc.channel_ready_future(channel).result(ANSWER_SECONDS)


@contextmanager
def _start_local() -> Iterator[None]:
    """Start a cluster of this process, out of the reach of other users of the machine."""
    set_defaults(ENVIRONMENT | LOCAL_ENVIRONMENT)
    cpus = usable_cores()
    with capacity.declare_workers(0, cpus), private_session(), _on_loopback(), own_nodes():
        # "local": not the cluster that someone else may run on this machine.
        _init("local", include_dashboard=False, num_cpus=cpus, job_config=build_job_config())
        yield


def build_job_config() -> JobConfig:
    """Return the settings of Ray with which workers of this machine are this Python, and find modules where it does.

    Ray puts the current folder before everything else, where a `statistics.py` of the user's hides Python's. It does
    not do so for a job of Ray Client, which this one claims to be.
    """
    # Each is put before those so far.
    folders = [str(Path(folder).absolute()) for folder in reversed(sys.path)]
    # A shell starts the workers, from words that Ray does not quote.
    python = shlex.quote(sys.executable)
    environment = {"py_executable": python} if python != sys.executable else None
    return JobConfig(runtime_env=environment, _client_job=True, _py_driver_sys_path=folders)


@contextmanager
def private_session() -> Iterator[None]:
    """Keep sessions of clusters that the block starts in a folder closed to other users, removed at its end.

    Ray opens /tmp/ray and the sessions in it to all: another user could replace a socket. The token that guards Ray's
    ports is made for its owner alone, too. The folder is passed in RAY_TMPDIR, since `ray.cluster_utils.Cluster` writes
    its address there whatever other folder it gets.
    """
    ensure_ray_token()
    earlier = os.environ.get("RAY_TMPDIR")
    parents = (earlier, tempfile.gettempdir(), "/tmp")  # noqa: S108 - mkdtemp makes the folder
    parent = next(parent for parent in parents if parent and len(parent) <= SOCKET_ROOM)
    folder = Path(tempfile.mkdtemp(prefix="sp500-", dir=parent))
    (folder / "ray").mkdir()
    os.environ["RAY_TMPDIR"] = str(folder)
    try:
        yield
    finally:
        os.environ.pop("RAY_TMPDIR")
        if earlier is not None:
            os.environ["RAY_TMPDIR"] = earlier
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def own_nodes() -> Iterator[None]:
    """Start nodes in the block for this process only: without dashboard, autoscaler and reader of logs.

    `ray.init` waits a second for the first and, at the end, one for all three. It can be asked to leave out the
    dashboard's pages only.
    """
    with ExitStack() as stack:
        for name in ("start_api_server", "start_monitor", "start_log_monitor"):
            stack.enter_context(mock.patch.object(Node, name))
        _owning.set()
        stack.callback(_owning.clear)
        yield


def owns_cluster() -> bool:
    """Return whether this process started the cluster that it is connected to."""
    return _owning.is_set()


@contextmanager
def _on_loopback() -> Iterator[None]:
    """Make Ray listen only on 127.0.0.1 in the block, as it does if no node may join: on Windows and macOS.

    `ray.init` replaces the address 127.0.0.1 of a node by the machine's own. The variable is for Ray's processes: this
    one read it when it imported Ray. Both are as before afterwards, since a process that joins a cluster needs that.
    What is left: a replica of Ray Serve accepts calls of other replicas on all addresses, for those who have the token
    (fixed in Ray 2.60).
    """
    ray_constants.ENABLE_RAY_CLUSTER, before = False, ray_constants.ENABLE_RAY_CLUSTER
    given, os.environ[JOINABLE] = os.environ.get(JOINABLE), "0"
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before
        if given is None:
            os.environ.pop(JOINABLE, None)
        else:
            os.environ[JOINABLE] = given


def set_defaults(environment: dict[str, str]) -> None:
    """Set what Ray reads when it starts. Variables that the user has set stay."""
    for key, value in environment.items():
        os.environ.setdefault(key, value)
    # Read from the environment when Ray is imported. Under `uv run` Ray would pack the current folder, and install what
    # it asks for once per worker.
    ray_constants.RAY_ENABLE_UV_RUN_RUNTIME_ENV = False


def _init(address: str, **settings: object) -> None:
    # A thread of Tune's that calls Ray once more after Ctrl-C has ended it would start a whole new cluster. (The
    # public switch, RAY_ENABLE_AUTO_CONNECT, is read when Ray is imported.)
    auto_init_hook.enable_auto_connect = False
    with keep_signal_handlers():
        for left in reversed(range(STARTS)):
            try:
                ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **settings)
                return
            except Exception as error:  # Ray has no class of its own for it; other errors are raised again
                if SLOW_START not in str(error):
                    raise
                if not left:
                    raise ResourcesError(
                        f"Ray did not start within 30 s, {STARTS} times: the machine is too busy. End other work, or "
                        "use --num-workers 0 or another --mode"
                    ) from error


@contextmanager
def keep_signal_handlers() -> Iterator[None]:
    """Put back, after the block, the signal handlers that Ray replaces: in the main thread Python's, else those of C.

    Ray's core ends the process on SIGTERM, whatever thread has started it.
    """
    python = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    below = {number: _read_handler(number) for number in python}
    try:
        yield
    finally:
        for number, handler in python.items():
            if threading.current_thread() is threading.main_thread():
                signal.signal(number, handler)
            else:
                _set_handler(number, below[number])


def run_in_thread(function: Callable[[], T], stop: Callable[[], None] | None = None) -> T:
    """Run `function()` in a thread, while this one stays open to signals. `stop` asks it to end soon.

    In the main thread, Ray Train and Tune handle SIGINT in their own ways, which end without a message or a record.
    """
    with ThreadPoolExecutor(1, thread_name_prefix="ray") as pool:
        future = pool.submit(function)
        try:
            return future.result()
        except KeyboardInterrupt:
            if stop:
                # A call that meets a Ray that has ended may end the process, with exit code 1 and without a record.
                stop()
                wait([future], STOP_SECONDS)
            shut_down()  # ends what the thread waits for
            raise
