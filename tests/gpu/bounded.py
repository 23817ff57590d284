"""Programs with a time limit, for tests/gpu/check.py."""

import os
import signal
import subprocess


def run(command, limit_s, **named):
    """Does what subprocess.run does with its output captured as text; past the limit, the program and all that it started are killed.

    Raises subprocess.TimeoutExpired, with what was printed until then.
    """
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(list(map(str, command)), start_new_session=True, **pipes, **named) as program:
        try:
            out, error = program.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(program.pid, signal.SIGKILL)
            out, error = program.communicate()
            raise subprocess.TimeoutExpired(command, limit_s, out, error) from None
        return subprocess.CompletedProcess(command, program.returncode, out, error)
