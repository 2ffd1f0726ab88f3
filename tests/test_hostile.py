"""Hostile cells against the real engine: files, network, privilege (classes F, N, P)."""

from __future__ import annotations

import json
import socket
import threading
from typing import TYPE_CHECKING

import pytest

from tests.jupyter import Kernel, started

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("image")

SECRET = "s3cr3t-canary"


@pytest.fixture(scope="module")
def kernel(image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    """A kernel whose host has secrets in every place that tools are known to copy from."""
    config = tmp_path_factory.mktemp("docker")
    proxies = {"default": {"httpProxy": f"http://user:{SECRET}@127.0.0.1:9"}}
    (config / "config.json").write_text(json.dumps({"proxies": proxies}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DOCKER_CONFIG", str(config))
        patch.setenv("CANARY", SECRET)
        patch.setenv("HTTP_PROXY", f"http://user:{SECRET}@127.0.0.1:9")
        patch.setenv("NO_PROXY", "127.0.0.1,localhost")
        with started("timeout_seconds=20") as running:
            yield running


@pytest.fixture(autouse=True)
def _answers_afterwards(request: pytest.FixtureRequest) -> Iterator[None]:
    """K+: whatever the cell did, the next one answers."""
    yield
    if "kernel" in request.fixturenames:
        after = request.getfixturevalue("kernel").run("1 + 1")
        assert after.value == "2"
        assert after.seconds < 15


@pytest.mark.parametrize(
    ("code", "enames"),
    [
        pytest.param("open('/etc/x', 'w')", {"OSError"}, id="F1-write-etc"),
        pytest.param("open('/usr/lib/x', 'w')", {"OSError"}, id="F2-write-usr"),
        pytest.param("open('/home/u/.ssh/id_rsa')", {"FileNotFoundError"}, id="F3-host-key"),
        pytest.param("import os; os.mknod('/sandbox/d', 0o60666, os.makedev(8, 0))",
                     {"PermissionError"}, id="F10-device"),
        pytest.param("import socket; socket.create_connection(('192.0.2.1', 80), 2)",
                     {"OSError"}, id="N1-address"),
        pytest.param("import socket; socket.create_connection(('169.254.169.254', 80), 2)",
                     {"OSError"}, id="N2-metadata"),
        pytest.param("import socket; socket.create_connection(('2001:db8::1', 80), 2)",
                     {"OSError"}, id="N3-ipv6"),
        pytest.param("import socket; socket.gethostbyname('example.invalid')",
                     {"gaierror"}, id="N4-name"),
        pytest.param("import socket\n"
                     "socket.socket(socket.AF_INET, socket.SOCK_DGRAM)"
                     ".sendto(b'x', ('192.0.2.53', 53))", {"OSError"}, id="N5-udp"),
        pytest.param("import os; os.setuid(0)", {"PermissionError"}, id="P2-setuid"),
        pytest.param("import os; os.setgroups([0])", {"PermissionError"}, id="P2-setgroups"),
        pytest.param("import os; os.chroot('/tmp')", {"PermissionError"}, id="P2-chroot"),
        pytest.param("open('/proc/1/mem', 'r+b')", {"PermissionError"}, id="P8-memory"),
        pytest.param("import os; os.listdir('/proc/1/fd')", {"PermissionError"}, id="P8-fds"),
        pytest.param("f = open('/proc/self/oom_score_adj', 'w'); f.write('-1000'); f.flush()",
                     {"PermissionError"}, id="P10-oom-score"),
        pytest.param("open('/proc/sys/kernel/core_pattern', 'w').write('|/tmp/x')",
                     {"OSError", "PermissionError"}, id="P11-core-pattern"),
        pytest.param("open('/proc/sysrq-trigger', 'w').write('b')",
                     {"OSError", "PermissionError", "FileNotFoundError"}, id="P11-sysrq"),
        pytest.param("open('/sys/fs/cgroup/memory/release_agent', 'w').write('/tmp/x')",
                     {"OSError", "PermissionError", "FileNotFoundError"}, id="P11-release-agent"),
        pytest.param("open('/sys/fs/cgroup/memory/cgroup.procs', 'w').write('1')",
                     {"OSError", "PermissionError", "FileNotFoundError"}, id="P11-cgroup"),
        pytest.param("import resource; resource.setrlimit(resource.RLIMIT_CORE, (1, 1))",
                     {"ValueError"}, id="P13-core-limit"),
        pytest.param("import os; os.nice(-20)", {"PermissionError"}, id="R19-nice"),
    ],
)  # fmt: skip
def test_refused(kernel: Kernel, code: str, enames: set[str]) -> None:
    result = kernel.run(code)

    assert result.ename in enames
    assert result.seconds < 5


def test_f4_f5_no_host_environment(kernel: Kernel) -> None:
    result = kernel.run("import os; print(dict(os.environ))")

    assert SECRET not in result.stdout
    for part in ("JPY_", "JUPYTER_", "_PROXY", "_proxy", "CANARY"):
        assert part not in result.stdout


def test_f6_the_supervisors_environment_is_closed(kernel: Kernel) -> None:
    result = kernel.run("open('/proc/1/environ', 'rb').read()")

    assert result.ename == "PermissionError"


def test_f14_no_host_path_is_mounted(kernel: Kernel) -> None:
    result = kernel.run("print(open('/proc/self/mountinfo').read())")

    binds = {
        line.split()[4]
        for line in result.stdout.splitlines()
        if " - " in line
        and line.split(" - ")[1].split()[0] in {"ext4", "xfs", "btrfs", "9p", "virtiofs"}
    }
    assert binds <= {"/etc/hosts", "/etc/hostname", "/etc/resolv.conf"}
    assert "docker.sock" not in result.stdout


def test_f15_no_resolver_of_the_host(kernel: Kernel) -> None:
    result = kernel.run("print(open('/etc/resolv.conf').read())")

    servers = [line.split()[1] for line in result.stdout.splitlines() if "nameserver" in line]
    assert servers in ([], ["127.0.0.1"])


def test_n6_the_hosts_loopback_is_another(kernel: Kernel) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.5)
        port = server.getsockname()[1]
        result = kernel.run(f"import socket; socket.create_connection(('127.0.0.1', {port}), 2)")

        assert result.ename == "ConnectionRefusedError"
        with pytest.raises(TimeoutError):
            server.accept()


def test_n9_only_the_loopback_interface(kernel: Kernel) -> None:
    result = kernel.run("import os; os.listdir('/sys/class/net')")

    assert result.value == "['lo']"


def test_n10_loopback_inside_works(kernel: Kernel) -> None:
    result = kernel.run(
        "import socket\n"
        "server = socket.create_server(('127.0.0.1', 0))\n"
        "client = socket.create_connection(server.getsockname())\n"
        "other, _ = server.accept(); client.sendall(b'hi'); other.recv(2)"
    )

    assert result.value == "b'hi'"


def test_n11_pip_gives_up(kernel: Kernel) -> None:
    result = kernel.run(
        "import subprocess\n"
        "subprocess.run(['pip', 'install', 'six'], capture_output=True).returncode"
    )

    assert result.value not in {None, "0"}
    assert result.seconds < 20


def test_n12_a_user_may_not_grant_what_the_administrator_does_not(tmp_path: Path) -> None:
    # The ceiling itself is tested in test_config; here, that a kernel shows the refusal.
    with started("network_mode=host") as kernel:
        result = kernel.run("1")

    assert result.ename == "SandboxPolicyError"
    assert "network_mode" in result.error["evalue"]


def test_p1_posture(kernel: Kernel) -> None:
    result = kernel.run("print(open('/proc/self/status').read())")

    status = dict(line.split(":\t", 1) for line in result.stdout.splitlines() if ":\t" in line)
    assert status["NoNewPrivs"] == "1"
    assert status["Seccomp"] == "2"
    assert int(status.get("Seccomp_filters", "2")) >= 2
    assert int(status["CapEff"], 16) == int(status["CapBnd"], 16) == 0
    assert status["Uid"].split() == ["65534"] * 4


@pytest.mark.parametrize(
    "call",
    [
        pytest.param("165, 0, 0, 0, 0, 0", id="mount"),
        pytest.param("308, 0, 0", id="setns"),
        pytest.param("272, 0x10000000", id="unshare"),
        pytest.param("430, 0, 0", id="fsopen"),
        pytest.param("425, 1, 0", id="io_uring_setup"),
        pytest.param("321, 0, 0, 0", id="bpf"),
        pytest.param("250, 0, 0, 0", id="keyctl"),
        pytest.param("101, 0x4206, 1, 0, 0", id="ptrace"),
        pytest.param("323, 0", id="userfaultfd"),
        pytest.param("310, 1, 0, 0, 0, 0, 0", id="process_vm_readv"),
    ],
)
def test_p5_p8_system_calls(kernel: Kernel, call: str) -> None:
    result = kernel.run(
        "import ctypes, platform\n"
        "assert platform.machine() == 'x86_64'\n"
        f"ctypes.CDLL(None, use_errno=True).syscall({call}), ctypes.get_errno()"
    )

    value, errno = eval(result.value or "(0, 0)")
    assert value == -1
    assert errno in {1, 13, 38}


def test_p3_no_new_user_namespace(kernel: Kernel) -> None:
    result = kernel.run("import ctypes; ctypes.CDLL(None).unshare(0x10000000)")

    assert result.value == "-1"


def test_p7_the_supervisor_ignores_every_signal(kernel: Kernel) -> None:
    kernel.run("before = 1")
    result = kernel.run(
        "import os\nfor number in range(1, 65):\n"
        "    try: os.kill(1, number)\n"
        "    except (OSError, ValueError): pass\n"
        "'alive'"
    )
    after = kernel.run("before")

    assert result.value == "'alive'"
    assert after.value == "1"


def test_p13_a_segfault_ends_the_worker_only(kernel: Kernel) -> None:
    result = kernel.run("import ctypes; ctypes.string_at(0)")

    assert result.ename == "SandboxCrashError"
    assert "SIGSEGV" in result.error["evalue"]


def test_p14_no_way_to_root(kernel: Kernel) -> None:
    result = kernel.run(
        "import subprocess\n"
        "print(subprocess.run('su -c id; sudo id; find / -xdev -perm /6000 -type f',"
        " shell=True, capture_output=True, text=True).stdout)"
    )

    assert result.stdout.strip() == ""


def test_w14_every_low_descriptor_may_be_written_to(kernel: Kernel) -> None:
    kernel.run("before = 1")
    result = kernel.run(
        "import os\nfor fd in range(51):\n"
        "    try: os.write(fd, b'\\x00' * 1000)\n"
        "    except OSError: pass"
    )
    after = kernel.run("before")

    assert result.ok
    assert after.value == "1"


def test_w17_a_cell_cannot_write_cells(kernel: Kernel) -> None:
    result = kernel.run("get_ipython().set_next_input('import os', replace=True)")

    assert result.content["payload"] == []
    assert {m["msg_type"] for m in result.messages} <= {"execute_input", "stream"}


def test_w18_a_pager_shows_text_only(kernel: Kernel) -> None:
    result = kernel.run(
        "def f():\n    '<script>x</script>'\nget_ipython().run_line_magic('pinfo', 'f')"
    )

    for payload in result.content["payload"]:
        assert set(payload["data"]) == {"text/plain"}


def test_w19_comms_do_not_cross(kernel: Kernel) -> None:
    result = kernel.run(
        "import comm; comm.create_comm(target_name='jupyter.widget',"
        " target_module='//127.0.0.1:9/x').send({'a': 1})"
    )

    assert not [m for m in result.messages if m["msg_type"].startswith("comm")]


def test_w22_a_prompt_says_who_asks(kernel: Kernel) -> None:
    prompts = []

    def answer(content: dict[str, object]) -> str:
        prompts.append(content["prompt"])
        return ""

    kernel.run("input('Jupyter password: ')", answer=answer)

    assert prompts == ["[sandboxed code asks] Jupyter password: "]


def test_w26_a_cell_cannot_fake_our_verdicts(kernel: Kernel) -> None:
    result = kernel.run(
        "class SandboxTimeoutError(Exception): pass\nraise SandboxTimeoutError('x')"
    )

    assert result.ename == "Exception"
    assert not result.sandbox["timed_out"]


def test_a_listener_on_all_addresses_of_the_host_hears_nothing(kernel: Kernel) -> None:
    heard = threading.Event()

    def listen(server: socket.socket) -> None:
        try:
            server.accept()
            heard.set()
        except OSError:
            pass

    with socket.create_server(("0.0.0.0", 0)) as server:
        thread = threading.Thread(target=listen, args=(server,), daemon=True)
        thread.start()
        port = server.getsockname()[1]
        kernel.run(
            "import socket\n"
            "for host in ('172.17.0.1', '127.0.0.1', '10.0.2.2'):\n"
            f"    try: socket.create_connection((host, {port}), 1)\n"
            "    except OSError: pass"
        )
        server.settimeout(0.1)
        server.shutdown(socket.SHUT_RDWR)
        thread.join(5)

    assert not heard.is_set()


@pytest.mark.parametrize(
    "call",
    [
        pytest.param("resource.prlimit(1, resource.RLIMIT_NOFILE, (0, 0))", id="limits"),
        pytest.param("os.sched_setscheduler(1, os.SCHED_IDLE, os.sched_param(0))", id="scheduler"),
        pytest.param("os.sched_setaffinity(1, {0})", id="affinity"),
        pytest.param("os.setpriority(os.PRIO_PROCESS, 1, 19)", id="priority"),
        pytest.param("os.setpriority(os.PRIO_PGRP, 1, 19)", id="priority-of-its-group"),
        pytest.param("os.setpriority(os.PRIO_USER, 65534, 19)", id="priority-of-its-user"),
    ],
)
def test_the_supervisor_cannot_be_starved(kernel: Kernel, call: str) -> None:
    result = kernel.run(f"import os, resource; {call}")
    own = kernel.run("os.nice(1); os.sched_setaffinity(0, os.sched_getaffinity(0)); 'own'")

    assert result.ename == "PermissionError"
    assert own.value == "'own'"


ASK = (
    "import gc\nfrom sandbox_kernel import wire\nfrom sandbox_kernel.guest.link import Link\n"
    "link = [o for o in gc.get_objects() if type(o) is Link][0]\n"
)


@pytest.mark.parametrize(
    ("code", "stdin"),
    [
        pytest.param(
            ASK + "link.send(wire.InputRequest(link._connection.cell, 'x', False))\n"
            "import time\nwhile True: time.sleep(.1)",
            False,
            id="a-question-that-nobody-allowed",
        ),
        pytest.param(
            "import time\nwhile True:\n try:\n  while True: time.sleep(.1)\n"
            " except BaseException:\n  try: input('again')\n  except BaseException: pass",
            True,
            id="a-question-after-the-interrupt",
        ),
    ],
)
def test_a_question_does_not_stop_the_clock(code: str, stdin: bool) -> None:
    with started("timeout_seconds=1.5") as kernel:
        kernel.run("x = 1")
        result = kernel.run(code, allow_stdin=stdin)
        after = kernel.run("x")

    assert result.ename == "SandboxTimeoutError"
    assert result.seconds < 8
    assert after.value == "1"


@pytest.mark.parametrize(
    "code",
    [
        pytest.param("import sys; del sys.stdout", id="deleted"),
        pytest.param(
            "import sys\nclass X:\n    def __getattr__(self, name): raise SystemExit\n"
            "sys.stdout = sys.stderr = X()",
            id="hostile",
        ),
    ],
)
def test_streams_that_are_gone_are_put_back(code: str) -> None:
    with started() as kernel:
        kernel.run(code)
        result = kernel.run("print('hi'); 1 + 1")

    assert result.stdout == "hi\n"
    assert result.value == "2"


def test_a_fork_hook_that_hangs_costs_the_net_only() -> None:
    with started("timeout_seconds=10") as kernel:
        kernel.run("import os, time\nos.register_at_fork(after_in_child=lambda: time.sleep(1e9))")
        result = kernel.run("1 + 1")

    assert result.value == "2"
    assert result.seconds < 5
