"""A page in headless Chromium, spoken to through its debugging pipe: what scripts see, what the
mouse does, how it looks."""

import base64
import contextlib
import functools
import json
import os
import select
import shutil
import subprocess
import tempfile
import time

SECONDS = 120  # for any one answer


@functools.cache
def find_chromium():
    """One that starts: some distributions have a script of that name that only says where to get
    it."""
    for name in ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable"):
        found = shutil.which(name)
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            done = subprocess.run([found or name, "--version"], capture_output=True, text=True,
                                  timeout=SECONDS)
            if done.returncode == 0 and "Chrom" in done.stdout:
                return found
    return None


class Page:
    """with Page(url) as page: page.evaluate("1 + 1")"""

    def __init__(self, url, width=1400, height=1900):
        self.profile = tempfile.mkdtemp(prefix="firn-chromium-")
        commands, self.to = os.pipe()
        self.answers, answers = os.pipe()

        def pipes():  # where the browser looks for them
            for each, number in ((os.dup(commands), 3), (os.dup(answers), 4)):
                os.dup2(each, number)

        self.process = subprocess.Popen(
            [find_chromium(), "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
             "--disable-dev-shm-usage", "--disable-background-networking", "--no-first-run",
             "--remote-debugging-pipe", f"--user-data-dir={self.profile}",
             f"--window-size={width},{height}", "about:blank"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            close_fds=False, preexec_fn=pipes, env={**os.environ, "HOME": self.profile})
        for each in (commands, answers):
            os.close(each)
        self.left, self.number, self.session, self.events = b"", 0, None, []
        try:
            target = self.ask("Target.createTarget", url="about:blank")["targetId"]
            self.session = self.ask("Target.attachToTarget", targetId=target,
                                    flatten=True)["sessionId"]
            for domain in ("Page", "Runtime", "Network", "Log"):
                self.ask(domain + ".enable")
            self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height,
                     deviceScaleFactor=1, mobile=False)
            self.ask("Page.navigate", url=url)
        except BaseException:
            self.close()
            raise

    def ask(self, method, **parameters):
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.take()
            if answer.get("id") == self.number:
                assert "error" not in answer, answer
                return answer["result"]
            self.events.append(answer)

    def take(self):
        until = time.monotonic() + SECONDS
        while b"\0" not in self.left:
            ready, _, _ = select.select([self.answers], [], [], max(0, until - time.monotonic()))
            assert ready, "the browser does not answer"
            data = os.read(self.answers, 1 << 20)
            assert data, "the browser has ended"
            self.left += data
        text, self.left = self.left.split(b"\0", 1)
        return json.loads(text)

    def evaluate(self, expression):
        answer = self.ask("Runtime.evaluate", expression=expression, returnByValue=True,
                          awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait_for(self, expression):
        """Until it is true; its value."""
        until = time.monotonic() + SECONDS
        while True:
            value = self.evaluate(expression)
            if value:
                return value
            assert time.monotonic() < until, f"never came true: {expression}"
            time.sleep(0.02)

    def drawn(self):
        """Until what was asked for is on the canvas."""
        self.wait_for("document.readyState === 'complete'")
        self.wait_for("document.documentElement.dataset.readyMs || "
                      "document.documentElement.dataset.failed")
        assert not self.evaluate("document.documentElement.dataset.failed")
        self.evaluate("new Promise(done => requestAnimationFrame("
                      "() => requestAnimationFrame(done)))")

    def mouse(self, kind, x, y, **more):
        self.ask("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def picture(self, path=None):
        data = base64.b64decode(self.ask("Page.captureScreenshot", format="png")["data"])
        if path:
            with open(path, "wb") as file:
                file.write(data)
        return data

    def complaints(self):
        """What the page wrote to the console, and what it wanted from a network."""
        self.evaluate("0")
        out = []
        for event in self.events:
            method, what = event.get("method"), event.get("params", {})
            if method in ("Runtime.exceptionThrown", "Log.entryAdded", "Runtime.consoleAPICalled"):
                out.append(what)
            if method == "Network.requestWillBeSent" and not what["request"]["url"].startswith(
                    ("file:", "data:", "blob:")):
                out.append(what["request"]["url"])
        return out

    def close(self):
        for each in (self.to, self.answers):
            os.close(each)
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        shutil.rmtree(self.profile, ignore_errors=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
