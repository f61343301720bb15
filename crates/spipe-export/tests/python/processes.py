"""Runs exported scripts in forked processes, so that PyTorch is imported once; each has a time-out."""

import os
import runpy
import signal
import socket
import subprocess
import sys
import time
import traceback

# Imported before processes are forked, so that each of them has it.
import torch  # noqa: F401
import torch._dynamo  # noqa: F401  (PyTorch's optimizers import it)
import torch.distributed.fsdp  # noqa: F401
import torch.distributed.pipelining  # noqa: F401
import torch.profiler  # noqa: F401

LIMIT = 300


def port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


def child(environment, folder, log, run):
    """Forks a process that calls `run`; its id."""
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        with open(log, "w") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        os.environ.update(environment)
        os.chdir(folder)
        run()
        code = 0
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        code = end.code if isinstance(end.code, int) else 1 if end.code else 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def wait(pids, limit=LIMIT, alone=False):
    """The exit codes; processes that take longer than `limit` seconds are killed. `alone` ones end by themselves when one has failed."""
    codes, end = {}, time.monotonic() + limit
    while len(codes) < len(pids):
        for pid in set(pids) - set(codes):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                codes[pid] = os.waitstatus_to_exitcode(status)
        late = time.monotonic() > end
        failed = any(codes.values()) and not alone
        if late or failed:
            # One that failed leaves the others waiting for it.
            for pid in set(pids) - set(codes):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                codes[pid] = "too late" if late else "killed"
        time.sleep(0.02)
    return [codes[pid] for pid in pids]


def script(folder, world, arguments, limit=LIMIT, name="train.py"):
    """Runs an exported script in `world` processes; the exit codes and what they printed."""
    master = port()

    def run():
        sys.argv = [name, *arguments]
        sys.path.insert(0, folder)
        runpy.run_path(os.path.join(folder, name), run_name="__main__")

    logs = [os.path.join(folder, f"rank{rank}.log") for rank in range(world)]
    pids = []
    for rank, log in enumerate(logs):
        environment = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": master}
        pids.append(child(environment, folder, log, run))
    codes = wait(pids, limit)
    texts = []
    for log in logs:
        with open(log) as file:
            texts.append(file.read())
    return codes, texts


def apart(folder, run, limit=LIMIT):
    """Calls a function in a forked process of its own; the exit code and what it printed."""
    log = os.path.join(folder, "apart.log")
    (code,) = wait([child({}, folder, log, run)], limit)
    with open(log) as file:
        return code, file.read()


def command(*arguments, limit=LIMIT, code=0):
    """Runs a command; what it printed."""
    done = subprocess.run([str(argument) for argument in arguments], capture_output=True, text=True, timeout=limit)
    if done.returncode != code:
        raise AssertionError(f"{arguments} ended with {done.returncode}, not {code}:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    return done.stdout if code == 0 else done.stderr
