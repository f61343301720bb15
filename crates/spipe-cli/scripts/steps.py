"""Steps of a check of a device: each within a time of its own and what is left of the whole, its results kept at once.

    Commands(limit)          runs programs until the time is over
    Steps(folder, ...)       NAME.json for each step, and the report of all that have run; steps that are done are not repeated
"""

import hashlib
import json
import os
import subprocess
import time
from collections.abc import Callable


class Failed(Exception):
    """A step that did not end well: its last words."""


class LeftOut(Exception):
    """A step that cannot run here: why."""


class Commands:
    """Runs programs within a time."""

    def __init__(self, limit: float) -> None:
        self.end = time.monotonic() + limit

    def left(self) -> float:
        return self.end - time.monotonic()

    def time(self, limit: float | None = None) -> float:
        """Seconds that a program may take."""
        left = self.left()
        if left < 1:
            raise Failed("left out: the time is over")
        return left if limit is None else min(left, limit)

    def run(self, *words: object, limit: float | None = None) -> str:
        """Runs a program; what it wrote."""
        allowed = self.time(limit)
        try:
            done = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=allowed)
        except subprocess.TimeoutExpired:
            raise Failed(f"stopped after {allowed:.0f} s") from None
        except OSError as error:
            raise Failed(f"`{words[0]}` did not start: {error.strerror}") from None
        if done.returncode:
            raise Failed(f"code {done.returncode}: {last_words(done.stderr + done.stdout)}")
        return done.stdout


def last_words(said: str) -> str:
    """The error of a program, or its last line."""
    lines = [line for line in said.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("error") or "Error" in line]
    return (errors or lines or ["no word"])[-1]


def gigabytes(rate: float | None) -> str:
    return "–" if rate is None else f"{rate / 1e9:.1f} GB/s"


class Steps:
    """The steps of a check, and its report as far as it goes."""

    def __init__(self, folder: str, title: str, inputs: dict, limit: float) -> None:
        self.folder, self.title, self.commands = folder, title, Commands(limit)
        text = json.dumps(inputs, sort_keys=True)
        self.inputs = {**inputs, "digest": hashlib.sha256(text.encode()).hexdigest()[:16]}
        self.names: list[str] = []
        os.makedirs(os.path.join(folder, "steps"), exist_ok=True)

    def path(self, name: str) -> str:
        return os.path.join(self.folder, "steps", f"{name}.json")

    def kept(self, name: str) -> dict | None:
        """A step's results, if it has run with the same inputs."""
        try:
            with open(self.path(name), encoding="utf-8") as file:
                found = json.load(file)
        except (OSError, ValueError):
            return None
        return found if found.get("inputs", {}).get("digest") == self.inputs["digest"] else None

    def results(self, name: str) -> dict:
        """A step's figures; none if it failed or was left out."""
        return (self.kept(name) or {}).get("results", {})

    def step(self, name: str, limit: float, work: Callable[[Commands], tuple[list[str], dict]]) -> None:
        """Runs a step for at most `limit` seconds, unless it is done; its lines and figures are written at once."""
        self.names.append(name)
        before = self.kept(name)
        if before is not None and before["ended"] == "done":
            print(f"{name}: kept from {before['date']}", flush=True)
            self.write()
            return
        start = time.monotonic()
        commands = Commands(min(limit, self.commands.left()))
        try:
            lines, results = work(commands)
            found = {"ended": "done", "lines": lines, "results": results}
        except LeftOut as reason:
            found = {"ended": "left-out", "lines": [str(reason)], "results": {}}
        except Failed as failed:
            found = {"ended": "failed", "lines": [f"FAILED: {name}: {failed}"], "results": {}}
        found = {
            "format-version": 1, "step": name, "date": time.strftime("%Y-%m-%d", time.gmtime()), "inputs": self.inputs,
            "seconds": round(time.monotonic() - start, 1), **found,
        }  # fmt: skip
        with open(self.path(name), "w", encoding="utf-8") as file:
            json.dump(found, file, indent=1, ensure_ascii=False)
            file.write("\n")
        print("\n".join(found["lines"]) + f"\n({name}: {found['seconds']} s)\n", flush=True)
        self.write()

    def write(self) -> None:
        """The report of the steps so far."""
        parts = [self.title]
        for name in self.names:
            found = self.kept(name)
            if found is not None:
                parts.append(f"## {name}\n\n" + "\n".join(found["lines"]) + f"\n\n{found['seconds']} s, {found['date']}.")
        with open(os.path.join(self.folder, "report.md"), "w", encoding="utf-8") as file:
            file.write("\n\n".join(parts) + "\n")

    def code(self, unmet: list[str]) -> int:
        """The exit code: 1 if a step failed, 6 if something wanted was not reached."""
        ended = [(self.kept(name) or {}).get("ended") for name in self.names]
        return 1 if "failed" in ended else 6 if unmet else 0
