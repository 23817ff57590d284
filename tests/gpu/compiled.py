"""Programs of tests/gpu/*.cu, compiled where there is an nvcc."""

import shutil
import subprocess
from pathlib import Path


def existing(path):
    return path if Path(path).exists() else None


def program(name, work, *options):
    """tests/gpu/NAME.cu as a program in `work`, or a text that says why there is none."""
    source, built = Path(__file__).with_name(f"{name}.cu"), Path(work) / name
    nvcc = shutil.which("nvcc") or existing("/usr/local/cuda/bin/nvcc")
    if not nvcc:
        return f"found no nvcc to compile {source} with: put the built program into the folder of binaries"
    command = [nvcc, "-std=c++17", "-arch=native", *options, "-o", str(built), str(source)]
    ran = subprocess.run(command, capture_output=True, text=True)
    return f"{' '.join(command)}: {ran.stdout}{ran.stderr}" if ran.returncode else built
