"""Headless Chromium and axe-core for tests of the live page: own processes and folder, nothing kept.

`python -m tests.browser` makes sure that both are on this machine: Chromium and its driver from Debian where that can
be (root and apt), axe-core from the npm registry (npm) into build/. The tests that need them are skipped without,
loudly.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any, Self

import pytest

from tests import debian

BUILD = Path(__file__).parent.parent / "build"
AXE_VERSION = "4.14.1"
AXE = BUILD / f"axe-core-{AXE_VERSION}.min.js"
WORDS = "LIVE-PAGE TESTS SKIPPED: chromium and chromedriver are not on PATH"
AXE_WORDS = f"ACCESSIBILITY TEST SKIPPED: axe-core {AXE_VERSION} is not in build/ and cannot be had from npm"
WAIT_S = 60
_INSTALL_S = 300
_ARGUMENTS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--force-color-profile=srgb",
)
_UNTIL = """
const [condition, done] = [new Function(`return (${arguments[0]})`), arguments[1]];
const observer = new MutationObserver(check);
function check() {
  const found = condition();
  if (!found) return;
  observer.disconnect();
  done(found);
}
observer.observe(document, { subtree: true, childList: true, characterData: true, attributes: true });
check();
"""


def there() -> bool:
    """Whether both programs can be run."""
    return shutil.which("chromium") is not None and shutil.which("chromedriver") is not None


needs_browser = pytest.mark.skipif(not there(), reason=WORDS)
needs_axe = pytest.mark.skipif(not AXE.exists(), reason=AXE_WORDS)


class Browser:
    """Use with `with`. One window; its methods block, so that they belong in a thread."""

    def __init__(self) -> None:
        from selenium import webdriver
        from selenium.webdriver.chrome.service import Service

        self._folder = tempfile.mkdtemp(prefix="ppd-chromium-")
        options = webdriver.ChromeOptions()
        options.binary_location = shutil.which("chromium") or ""
        for argument in (*_ARGUMENTS, f"--user-data-dir={self._folder}"):
            options.add_argument(argument)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self.driver = webdriver.Chrome(options, Service(shutil.which("chromedriver")))
        self.driver.set_script_timeout(WAIT_S)
        self.driver.set_page_load_timeout(WAIT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.driver.quit()
        shutil.rmtree(self._folder, ignore_errors=True)

    def look(self, width: int, height: int, scheme: str = "light") -> None:
        """From now on the window is that large (CSS pixels), in that colour scheme."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        self.media(scheme)

    def media(self, scheme: str = "light", motion: str = "reduce") -> None:
        features = [
            {"name": "prefers-color-scheme", "value": scheme},
            {"name": "prefers-reduced-motion", "value": motion},
        ]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def open(self, url: str) -> None:
        """Load a page, with nothing kept of one before."""
        self.driver.get(url)
        self.run("sessionStorage.clear(); localStorage.clear()")
        self.driver.get(url)

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def ask(self, script: str, *arguments: Any) -> Any:
        """A script that answers later, through its last argument."""
        return self.driver.execute_async_script(script, *arguments)

    def until(self, condition: str) -> Any:
        """Wait until a JavaScript expression is true, looking whenever the page changes; gives its value."""
        return self.driver.execute_async_script(_UNTIL, condition)

    def click(self, selector: str) -> None:
        self.driver.find_element("css selector", selector).click()

    def type(self, selector: str, text: str) -> None:
        """What a person types, in place of what is there."""
        field = self.driver.find_element("css selector", selector)
        field.clear()
        field.send_keys(text)

    def press(self, selector: str, keys: str) -> None:
        """Keys on an element that has, or gets, the focus."""
        self.driver.find_element("css selector", selector).send_keys(keys)

    def text(self, selector: str) -> str:
        return str(self.run("return document.querySelector(arguments[0]).textContent", selector))

    def picture(self, name: str) -> Path:
        """A screenshot of the window in build/."""
        BUILD.mkdir(exist_ok=True)
        path = BUILD / name
        assert self.driver.save_screenshot(str(path))
        return path

    def complaints(self) -> list[str]:
        """What the console said since the last time, of every level: errors, refused loads, violated policies."""
        return [f"{entry['level']} {entry['message']}" for entry in self.driver.get_log("browser")]

    def faults(self) -> list[dict[str, Any]]:
        """The serious and critical ones that axe-core finds in the page as it is."""
        self.run(AXE.read_text(encoding="utf-8"))
        found = self.driver.execute_async_script(
            "const done = arguments[0]; axe.run(document, {resultTypes: ['violations']}).then(done)"
        )
        return [fault for fault in found["violations"] if fault["impact"] in ("serious", "critical")]


def install() -> bool:
    """Install Debian's packages; False when that cannot be."""
    return debian.install(["chromium", "chromium-driver", "fonts-dejavu-core"], there, _INSTALL_S)


def fetch_axe() -> bool:
    """Get axe-core's one file with npm; False when that cannot be."""
    if shutil.which("npm") is None:
        return False
    BUILD.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="ppd-axe-") as folder:
        command = ["npm", "pack", "--silent", f"axe-core@{AXE_VERSION}"]
        try:
            subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=_INSTALL_S)
            [packed] = Path(folder).glob("*.tgz")
            with tarfile.open(packed) as archive:
                file = archive.extractfile("package/axe.min.js")
                assert file is not None
                AXE.write_bytes(file.read())
        except (subprocess.SubprocessError, OSError, ValueError, KeyError):
            return False
    return True


def main() -> int:
    missing = []
    if not there() and not install():
        missing.append(WORDS)
    if not AXE.exists() and not fetch_axe():
        missing.append(AXE_WORDS)
    for words in missing:
        line = "!" * len(words)
        sys.stdout.write(f"\n{line}\n{words}\n{line}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
