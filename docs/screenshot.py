"""Make the pictures of the documentation, in a real JupyterLab and a real browser.

python docs/screenshot.py

Needs the kernel `aisandbox-docker` and its image, Chromium, and the dependency group `docs`.
Invariants: the server listens on the loopback address alone and asks for a token; neither the
server nor the browser reads or writes anything of the user's own.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from playwright.sync_api import expect, sync_playwright

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import BrowserContext, Page

DOCS = Path(__file__).parent
NOTEBOOK = DOCS.parent / "notebooks" / "quickstart.ipynb"
KERNEL = "aisandbox (docker)"
PICTURE = DOCS / "images" / "jupyterlab.png"
CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")

#: Of the window: from the figure to the first thing that is refused.
WIDTH, HEIGHT = 1000, 1270
#: Larger pictures make a slow README.
MAX_BYTES = 400 * 1000
SERVER_SECONDS = 60
RUN_SECONDS = 120

#: No question about news, and every cell drawn, also those that are not on the screen.
SETTINGS = {
    "@jupyterlab/apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
    "@jupyterlab/notebook-extension/tracker": {"windowingMode": "none"},
}


def main() -> None:
    """Take the picture, and fail if the notebook did not end well."""
    with (
        tempfile.TemporaryDirectory() as folder,
        jupyterlab(Path(folder)) as (url, token),
        browser(Path(folder) / "browser") as context,
    ):
        page = context.new_page()
        page.goto(f"{url}/lab/tree/{NOTEBOOK.name}?token={token}")
        run_all(page)
        frame(page)
        page.screenshot(path=PICTURE)
    size = PICTURE.stat().st_size
    if size > MAX_BYTES:
        sys.exit(f"`{PICTURE}` has {size} bytes, more than {MAX_BYTES}")
    print(f"{PICTURE}: {size} bytes")


@contextmanager
def jupyterlab(folder: Path) -> Iterator[tuple[str, str]]:
    """Run a JupyterLab that knows the notebook alone; yield its address and its token."""
    work = folder / "work"
    work.mkdir()
    shutil.copy(NOTEBOOK, work)
    for name, values in SETTINGS.items():
        path = folder / "settings" / f"{name}.jupyterlab-settings"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(values), encoding="utf-8")
    token = secrets.token_hex(16)
    port = free_port()
    environment = os.environ | {
        "JUPYTER_TOKEN": token,
        "JUPYTERLAB_SETTINGS_DIR": str(folder / "settings"),
        "JUPYTERLAB_WORKSPACES_DIR": str(folder / "workspaces"),
        "JUPYTER_CONFIG_DIR": str(folder / "config"),
        "JUPYTER_RUNTIME_DIR": str(folder / "runtime"),
        "IPYTHONDIR": str(folder / "ipython"),
    }
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root",
               "--ServerApp.ip=127.0.0.1", f"--ServerApp.port={port}",
               "--ServerApp.port_retries=0", f"--ServerApp.root_dir={work}"]  # fmt: skip
    with (folder / "server.log").open("wb") as log:
        server = subprocess.Popen(command, env=environment, stdout=log, stderr=log)  # noqa: S603
    try:
        wait_for(f"http://127.0.0.1:{port}/api/status?token={token}", server)
        yield f"http://127.0.0.1:{port}", token
    finally:
        # Lets it shut its kernels down, which end their sandboxes.
        server.terminate()
        server.wait(timeout=30)


def free_port() -> int:
    """A port of the loopback address that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def wait_for(url: str, server: subprocess.Popen[bytes]) -> None:
    """Wait until the server answers; fail when it ended or took too long."""
    deadline = time.monotonic() + SERVER_SECONDS
    while time.monotonic() < deadline and server.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=5):  # noqa: S310 - our own, on loopback
                return
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.2)
    sys.exit(f"JupyterLab did not start (exit status {server.poll()})")


@contextmanager
def browser(profile: Path) -> Iterator[BrowserContext]:
    """Start Chromium with a profile of its own."""
    with sync_playwright() as playwright:
        context = playwright.chromium.launch_persistent_context(
            profile,
            executable_path=CHROMIUM,
            args=["--no-sandbox", "--disable-background-networking"],
            viewport={"width": WIDTH, "height": HEIGHT},
            color_scheme="light",
        )
        try:
            yield context
        finally:
            context.close()


def run_all(page: Page) -> None:
    """Run every cell with our kernel, and wait until the last one has told its verdict."""
    kernel = page.get_by_role("button", name=KERNEL)
    expect(kernel.first).to_be_visible(timeout=RUN_SECONDS * 1000)
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.get_by_role("menuitem", name="Run All Cells", exact=True).click()
    last = page.locator(".jp-Notebook-cell .jp-OutputArea-output").last
    expect(last).to_contain_text("verdict:", timeout=RUN_SECONDS * 1000)
    errors = page.locator('.jp-OutputArea-output[data-mime-type*="error"]')
    expect(errors).to_have_count(0)


def frame(page: Page) -> None:
    """Leave the notebook alone on the screen, with the figure's cell at its top."""
    page.keyboard.press("Control+b")  # the file browser
    figure = page.locator(".jp-Notebook-cell", has_text="plt.subplots")
    figure.evaluate("cell => cell.scrollIntoView({block: 'start'})")
    page.mouse.move(0, 0)
    # Figures and scroll bars settle.
    page.wait_for_timeout(1000)


if __name__ == "__main__":
    main()
