"""Whatever ends a kernel, nothing of it is left on the engine, and nothing else is touched."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import psutil
import pytest
from jupyter_client.manager import AsyncKernelManager
from typer.testing import CliRunner

from sandbox_kernel import labels, watcher
from sandbox_kernel.adapters import docker_engine
from sandbox_kernel.adapters.base import MemoryUse
from sandbox_kernel.cli import app
from tests.jupyter import TIMEOUT, Kernel, started
from tests.orphans import Shelf, exists, made_by, seconds_until_gone, shelf

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterator

    import docker
    from jupyter_client.asynchronous.client import AsyncKernelClient

T = TypeVar("T")

pytestmark = pytest.mark.usefixtures("image")

#: What SECURITY.md promises, in seconds.
PROMISED_SECONDS = 70

#: No process has it: the highest that Linux gives is 2**22.
NOBODY = 2**22 + 1

#: A user that no kernel on this machine runs as, so that no kernel's sweep takes part.
SOMEBODY = 77_777


@pytest.fixture
def containers(engine: docker.DockerClient) -> Iterator[Shelf]:
    with shelf(engine) as made:
        yield made


# --- the sweep -------------------------------------------------------------------------------


def foreign(containers: Shelf, uid: int) -> list[str]:
    """Containers that a sweep of `uid` must leave alone, some of them running."""
    return [
        containers.put(made_by(uid=uid), "running"),
        containers.put(made_by(uid=uid + 1, pid=NOBODY), "running"),
        containers.put(made_by(uid=uid + 1, age=4000)),
        containers.put(made_by(uid=uid, machine="m", pid=NOBODY)),
        containers.put(made_by(uid=uid, pid_namespace="pid:[1]", pid=NOBODY)),
        containers.put({**made_by(uid=uid, age=4000), labels.PID: "0x1"}),
        containers.put({"com.example.uid": str(uid), "com.example.expires": "1"}, "running"),
        containers.put({}),
    ]


def test_a_new_kernel_sweeps_what_others_left(
    engine: docker.DockerClient, containers: Shelf
) -> None:
    kept = foreign(containers, os.getuid())
    orphans = [
        containers.put(made_by(pid=NOBODY), "running"),
        containers.put(made_by(pid=NOBODY), "exited"),
        containers.put(made_by(boot_id="before")),
        containers.put(made_by(age=4000), "paused"),
    ]
    with started() as kernel:
        for orphan in orphans:
            assert seconds_until_gone(engine, orphan, at_most=20) is not None

        assert kernel.run("1 + 1").value == "2"
    assert all(exists(engine, container) for container in kept)


# --- the commands ----------------------------------------------------------------------------


@dataclass
class Said:
    status: int
    out: str


@pytest.fixture
def somebody(monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(os, "getuid", lambda: SOMEBODY)
    monkeypatch.setenv("COLUMNS", "200")
    return SOMEBODY


def run(*arguments: str) -> Said:
    result = CliRunner().invoke(app, arguments)
    return Said(status=result.exit_code, out=result.output)


def test_reap_removes_orphans_and_says_why(
    engine: docker.DockerClient, containers: Shelf, somebody: int
) -> None:
    kept = foreign(containers, somebody)
    ownerless = containers.put(made_by(uid=somebody, pid=NOBODY), "running")
    expired = containers.put(made_by(uid=somebody, age=4000))

    said = run("reap", "--provider", "docker")

    assert said.status == 0
    assert sorted(said.out.splitlines()) == sorted(
        [
            f"removed {ownerless[:12]} (pid {NOBODY}): its owner has ended",
            f"removed {expired[:12]} (pid {os.getpid()}): its lifetime is over",
        ]
    )
    assert not exists(engine, ownerless)
    assert not exists(engine, expired)
    assert all(exists(engine, container) for container in kept)


def test_a_dry_run_removes_nothing(
    engine: docker.DockerClient, containers: Shelf, somebody: int
) -> None:
    orphan = containers.put(made_by(uid=somebody, pid=NOBODY))

    said = run("reap", "--dry-run", "--provider", "docker")

    assert said.status == 0
    assert said.out == f"would remove {orphan[:12]} (pid {NOBODY}): its owner has ended\n"
    assert exists(engine, orphan)


def test_with_nothing_to_reap_it_says_so(somebody: int) -> None:
    said = run("reap", "--provider", "docker")

    assert said == Said(status=0, out="nothing to remove on docker\n")


@pytest.mark.parametrize("command", ["ps", "reap"])
def test_without_an_engine_the_command_fails(command: str, tmp_path: Any) -> None:
    result = CliRunner().invoke(app, [command, "--set", f"docker.host=unix://{tmp_path}/none.sock"])

    assert result.exit_code == 1
    assert type(result.exception).__name__ == "SandboxUnavailableError"


def test_ps_shows_whose_how_old_and_how_large(containers: Shelf, somebody: int) -> None:
    mine = containers.put(made_by(uid=somebody, age=125), "running")
    orphan = containers.put(made_by(uid=somebody, age=4000, pid=NOBODY))
    elsewhere = containers.put(made_by(uid=somebody, age=125, machine="m"))
    another = containers.put(made_by(uid=somebody + 1, age=125, pid=5))
    hidden = containers.put({})

    said = run("ps", "--provider", "docker")

    lines = {line.split()[0]: " ".join(line.split()[1:]) for line in said.out.splitlines()}
    assert said.status == 0
    assert lines["ID"] == "PROVIDER OWNER AGE EXPIRES MEMORY STATE"
    assert lines[mine[:12]].startswith(f"docker pid {os.getpid()}, alive 2 min in 57 min ")
    assert lines[mine[:12]].endswith(" MiB running")
    assert lines[orphan[:12]] == f"docker pid {NOBODY}, ended 1 h expired - created"
    assert lines[elsewhere[:12]].startswith(f"docker pid {os.getpid()}, elsewhere 2 min ")
    assert lines[another[:12]].startswith(f"docker uid {somebody + 1}, pid 5 2 min ")
    assert hidden[:12] not in lines


def test_ps_of_a_kernel_s_sandbox_as_json() -> None:
    with started("memory_bytes=300 MiB") as kernel:
        sandbox = kernel.run("x = bytearray(100 << 20)").sandbox["sandbox_id"]
        said = run("ps", "--json", "--provider", "docker")
        pid = kernel.manager.provisioner.pid

    [entry] = [each for each in json.loads(said.out) if each["sandbox_id"] == sandbox]
    created, expires = entry.pop("created"), entry.pop("expires")
    used = entry.pop("memory_used_bytes")
    assert entry == {
        "sandbox_id": sandbox,
        "provider": "docker",
        "uid": os.getuid(),
        "pid": pid,
        "owner_alive": True,
        "memory_limit_bytes": 300 << 20,
        "state": "running",
    }
    assert time.time() - 60 < created < time.time() + 1 < expires
    assert 100 << 20 < used < 300 << 20


@pytest.mark.parametrize(
    ("memory", "use"),
    [
        pytest.param(
            {"usage": 9, "limit": 20, "stats": {"total_inactive_file": 4, "inactive_file": 1}},
            MemoryUse(used=5, limit=20),
            id="control-groups-v1",
        ),
        pytest.param(
            {"usage": 9, "limit": 20, "stats": {"inactive_file": 4}},
            MemoryUse(used=5, limit=20),
            id="control-groups-v2",
        ),
        pytest.param({"usage": 9, "limit": 20}, MemoryUse(used=9, limit=20), id="no-details"),
        pytest.param({}, None, id="not-running"),
    ],
)
def test_memory_is_counted_without_caches(memory: dict[str, Any], use: MemoryUse | None) -> None:
    assert docker_engine._memory({"memory_stats": memory}) == use


# --- the end of a kernel ---------------------------------------------------------------------


def watcher_of(kernel: Kernel) -> psutil.Process:
    [found] = psutil.Process(kernel.manager.provisioner.pid).children()
    assert watcher.ARGUMENTS[-1] in found.cmdline()
    return found


def test_only_the_watcher_can_remove_a_frozen_sandbox(engine: docker.DockerClient) -> None:
    """One that is paused notices neither the end of its stream nor its own timers."""
    with started() as kernel:
        sandbox = kernel.run("1").sandbox["sandbox_id"]
        engine.api.pause(sandbox)
        os.kill(kernel.manager.provisioner.pid, signal.SIGKILL)

        assert seconds_until_gone(engine, sandbox, at_most=10) is not None


def test_a_kernel_that_is_shut_down_dismisses_its_watcher() -> None:
    with started() as kernel:
        kernel.run("1")
        process = watcher_of(kernel)
        kernel.manager.shutdown_kernel(now=False)
        deadline = time.monotonic() + 3
        while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < deadline
            time.sleep(0.02)


STUBBORN = """
import os, signal, time
for number in range(1, 65):
    try:
        signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
if os.fork() == 0:
    os.setsid()
for descriptor in range(1000):
    try:
        os.close(descriptor)
    except OSError:
        pass
while True:
    try:
        time.sleep(1000)
    except BaseException:
        pass
"""


def test_l2_l4_stubborn_code_and_a_frozen_kernel(engine: docker.DockerClient) -> None:
    """Beside each other, because the second one takes the guest's 60 seconds of patience."""
    with (
        started("timeout_seconds=300") as killed,
        started("timeout_seconds=300") as frozen,
        ThreadPoolExecutor() as pool,
    ):
        stubborn = killed.run("1").sandbox["sandbox_id"]
        waiting = frozen.run("1").sandbox["sandbox_id"]
        killed.submit(STUBBORN)
        request = frozen.submit("import time; time.sleep(290)")
        time.sleep(2)
        # So that the guest alone has to notice.
        watcher_of(killed).kill()
        os.kill(killed.manager.provisioner.pid, signal.SIGKILL)
        os.kill(frozen.manager.provisioner.pid, signal.SIGSTOP)
        ends = [
            pool.submit(seconds_until_gone, engine, sandbox, at_most=PROMISED_SECONDS)
            for sandbox in (stubborn, waiting)
        ]
        seconds = [end.result() for end in ends]
        os.kill(frozen.manager.provisioner.pid, signal.SIGCONT)
        result = frozen.wait(request)
        after = frozen.run("1 + 1")

    assert None not in seconds
    assert seconds[0] < 10
    assert seconds[1] > 40
    assert result.ename == "SandboxDiedError"
    assert after.value == "2"


# --- many at once ----------------------------------------------------------------------------


def in_a_thread(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run an event loop beside the one that the blocking client keeps in this thread."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: asyncio.run(work())).result()


FLOOD = "while True: print('x' * 10_000)"

#: What a kernel does when it is killed, and how many seconds it has been at it, at most.
STAGES = {
    "create": ("", 0.4),
    "boot": ("", 1.5),
    "cell": ("sum(range(10**9))", 0.5),
    "flood": (FLOOD, 0.5),
    "shutdown": (FLOOD, 0.3),
}


async def kill_at(stage: str, seconds: float) -> int:
    """Start a kernel, kill it that long after a stage began, and return its process id."""
    code, _ = STAGES[stage]
    async with started_async() as (manager, client):
        if code:
            await client.wait_for_ready(timeout=TIMEOUT)
            client.execute(code)
        if code == FLOOD:
            while (await client.get_iopub_msg(timeout=TIMEOUT))["msg_type"] != "stream":
                pass
        if stage == "shutdown":
            client.shutdown()
        await asyncio.sleep(seconds)
        pid: int = manager.provisioner.pid
        # With SIGKILL, to its process group.
        await manager.shutdown_kernel(now=True)
    return pid


@asynccontextmanager
async def started_async() -> AsyncIterator[tuple[AsyncKernelManager, AsyncKernelClient]]:
    """Start one kernel of many that one thread looks after."""
    manager = AsyncKernelManager(kernel_name="aisandbox-docker")
    await manager.start_kernel(extra_arguments=["--provider", "docker"])
    client = manager.client()
    client.start_channels()
    try:
        yield manager, client
    finally:
        client.stop_channels()
        if await manager.is_alive():
            await manager.shutdown_kernel(now=False)
        await manager.cleanup_resources()


@contextmanager
def watching(engine: docker.DockerClient, pids: dict[int, float]) -> Iterator[dict[int, float]]:
    """Note, for each process that was killed, how long a container of its was still listed."""
    lived: dict[int, float] = {}
    done = False

    def look() -> None:
        while not done:
            for container in engine.api.containers(all=True, filters={"label": labels.PID}):
                for pid, killed in list(pids.items()):
                    if container["Labels"][labels.PID] == str(pid):
                        lived[pid] = time.monotonic() - killed
            time.sleep(0.25)

    with ThreadPoolExecutor(1) as pool:
        looking = pool.submit(look)
        try:
            yield lived
        finally:
            done = True
            looking.result()


def test_t47_a_kernel_killed_at_any_moment_leaves_nothing(
    engine: docker.DockerClient, containers: Shelf
) -> None:
    kept = foreign(containers, os.getuid())
    seed = random.randrange(2**32)
    chance = random.Random(seed)
    moments = [
        (stage, chance.uniform(0, most)) for stage, (_, most) in STAGES.items() for _ in range(10)
    ]
    chance.shuffle(moments)
    killed: dict[int, float] = {}
    slots = asyncio.Semaphore(5)

    async def kill(stage: str, seconds: float) -> None:
        async with slots:
            pid = await kill_at(stage, seconds)
        killed[pid] = time.monotonic()

    async def kill_all() -> None:
        await asyncio.gather(*(kill(*moment) for moment in moments))

    with started() as bystander, watching(engine, killed) as lived:
        bystander.run("x = 1")
        in_a_thread(kill_all)
        # Until the last watcher has ended: what the engine makes later would be seen.
        time.sleep(watcher.LINGER_SECONDS + 2)
        survivor = bystander.run("x")

    left = [pid for pid in killed if time.monotonic() - killed[pid] - lived.get(pid, 0) < 2]
    assert len(killed) == len(moments) == 50
    assert left == [], f"seed {seed}"
    assert max(lived.values(), default=0) < PROMISED_SECONDS, f"seed {seed}"
    assert survivor.value == "1"
    assert all(exists(engine, container) for container in kept)


def test_t49_twenty_kernels_at_once_all_become_idle() -> None:
    async def use_one(all_idle: asyncio.Barrier, tries: int = 5) -> tuple[str, str]:
        async with started_async() as (manager, client):
            try:
                await client.wait_for_ready(timeout=TIMEOUT)
            except RuntimeError:
                # Jupyter chooses ports before the kernel binds them, and among many another may
                # take one: its server then starts the kernel anew, as we do.
                if tries == 1 or await manager.is_alive():
                    raise
                return await use_one(all_idle, tries - 1)
            # Returns once the kernel is idle again.
            reply = await client.execute_interactive("assert 6 * 7 == 42", timeout=TIMEOUT)
            await all_idle.wait()
        return reply["content"]["status"], reply["metadata"]["sandbox"]["sandbox_id"]

    async def use_all() -> list[tuple[str, str]]:
        all_idle = asyncio.Barrier(20)
        return await asyncio.gather(*(use_one(all_idle) for _ in range(20)))

    begun = time.monotonic()
    results = in_a_thread(use_all)
    seconds = time.monotonic() - begun

    assert [status for status, _ in results] == ["ok"] * 20
    assert len({sandbox for _, sandbox in results}) == 20
    assert seconds < 90


def test_t55_a_kernel_is_busy_while_its_cell_is_silent_and_idle_after_it() -> None:
    with started() as kernel:
        states = []
        request = kernel.submit("import time; time.sleep(2)")
        begun = time.monotonic()
        while not states or states[-1][0] != "idle":
            message = kernel.client.get_iopub_msg(timeout=10)
            if message["parent_header"].get("msg_id") == request:
                state = message["content"].get("execution_state")
                states += [(state, time.monotonic() - begun)] if state else []

    assert [state for state, _ in states] == ["busy", "idle"]
    assert states[0][1] < 1
    assert states[1][1] > 1.9
