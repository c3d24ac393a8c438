#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Checks and measures jax_dmi on this machine's GPU: one command, offline, in less
# than 8 minutes, with the jax that is installed.
#
#   tests/gpu/run.sh          builds against the headers of the installed jaxlib
#
# JAX_DMI_WHEEL  installs this wheel instead of building one
# PYTHON         the Python that has jax (python3)
# OUT            what was found out: at most 8 files of JSON and logs (./gpu-out)
#
# Installs into a temporary folder: nothing of the machine is changed. Exits with 0
# if everything passed, 1 if something failed, 2 if this machine lacks something.
set -uo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
out=${OUT:-gpu-out} python=${PYTHON:-python3} failed=0 rows=()
mkdir -p "$out" && out=$(cd "$out" && pwd) || exit 2
work=$(mktemp -d "${TMPDIR:-/tmp}/jax_dmi-gpu.XXXXXX")
trap 'rm -rf "$work"' EXIT
unset JAX_PLATFORMS XLA_FLAGS
export PYTHONPATH=$work/site PYTHONDONTWRITEBYTECODE=1

stop() {
  echo "tests/gpu/run.sh: $*" >&2
  exit 2
}

lacking() { # MODULES...: those that cannot be found
  "$python" - "$@" <<'PYTHON'
import importlib.util
import sys

print(*[name for name in sys.argv[1:] if importlib.util.find_spec(name) is None])
PYTHON
}

# step NAME SECONDS COMMAND...: under a time limit, with a log and a row.
step() {
  local name=$1 limit=$2 start=$SECONDS status=0
  shift 2
  echo "$name ..."
  timeout -k 10 "$limit" "$@" > "$out/$name.log" 2>&1 < /dev/null || status=$?
  rows+=("{\"step\": \"$name\", \"status\": $status, \"seconds\": $((SECONDS - start))}")
  [ "$status" = 0 ] && return
  tail -n 40 "$out/$name.log"
  echo "$name failed: status $status after $((SECONDS - start)) of $limit s"
  failed=1
  return 1
}

skip() { # NAME WHY
  echo "$1: not run, $2"
  rows+=("{\"step\": \"$1\", \"not run\": \"$2\"}")
}

# Writes the summary, and ends.
finish() {
  (IFS=,; echo "[${rows[*]}]") | "$python" -m json.tool > "$out/summary.json"
  echo "$SECONDS s in all; see $out"
  exit "$failed"
}

# ---- What this machine has ----

command -v "$python" > /dev/null || stop "no $python; name one by PYTHON=..."
modules=(jax jaxlib numpy pyarrow pytest absl)
[ -n "${JAX_DMI_WHEEL:-}" ] || modules+=(nanobind scikit_build_core)
missing=$(lacking "${modules[@]}") || stop "$python does not run"
if [ -z "${JAX_DMI_WHEEL:-}" ]; then
  for tool in cmake ninja; do
    command -v "$tool" > /dev/null || [ -z "$(lacking "$tool")" ] || missing+=" $tool"
  done
fi
[ -z "${missing// /}" ] || stop "not installed for $python: $missing"
JAX_PLATFORMS=cuda "$python" -c '
import jax

for device in jax.devices():
    print(device, device.device_kind, "jax", jax.__version__)
' > "$work/devices" 2>&1 || {
  tail -n 3 "$work/devices" >&2
  stop "no GPU: jax finds no device of platform cuda"
}
cat "$work/devices"

# ---- The package ----

package=${JAX_DMI_WHEEL:-$root}
step install 150 "$python" -m pip install --target "$work/site" --no-index --no-deps \
  --no-build-isolation --disable-pip-version-check -v \
  --config-settings=cmake.define.DMI_CUDA=ON "$package" || finish
cd "$work" || exit 2
"$python" -m jax_dmi info --json > "$out/info.json" || failed=1

# ---- Tests ----

# A configuration of its own: needs no plugin of pytest.
printf '[pytest]\naddopts = --import-mode=importlib\npython_files = *_test.py\n' \
  > pytest.ini
step tests 150 "$python" -m pytest -c pytest.ini --rootdir "$root" \
  --confcutdir "$root" -p no:cacheprovider -v --durations=10 \
  "$root/tests/gpu" --dmi_platform=cuda

# ---- The native tests under the sanitizer ----

# Where CUDA's tools are, if not on the path.
for folder in "${CUDA_HOME:-}" /usr/local/cuda; do
  [ ! -d "$folder/bin" ] || PATH+=:$folder/bin
done
sanitize() {
  set -e
  cmake -S "$root" -B native -G Ninja -DDMI_BUILD_TESTS=ON -DDMI_BUILD_MODULE=OFF \
    -DDMI_CUDA=ON
  local targets target tool
  targets=$(ninja -C native -t targets all | sed -n 's/^\(cuda_[a-z_]*_test\): phony/\1/p')
  [ -n "$targets" ] || { echo "no native test is for a GPU"; return 1; }
  # shellcheck disable=SC2086
  ninja -C native $targets
  for target in $targets; do
    for tool in memcheck initcheck synccheck; do
      echo "== $tool $target"
      compute-sanitizer --tool "$tool" --error-exitcode 9 "native/tests/native/$target"
    done
  done
}
export root
export -f sanitize
if ! command -v compute-sanitizer > /dev/null; then
  skip sanitizer "there is no compute-sanitizer"
elif ! command -v cmake > /dev/null || ! command -v ninja > /dev/null; then
  skip sanitizer "cmake or ninja is not on the path"
elif [ ! -d /usr/src/googletest ] && [ ! -e /usr/include/gtest/gtest.h ]; then
  skip sanitizer "there is no GoogleTest"
else
  step sanitizer 70 bash -c sanitize
fi

# ---- The benchmarks ----

groups=$("$python" -c '
from jax_dmi import bench

print(*[name for name in bench.GROUPS if name.startswith("cuda")])')
if [ -n "$groups" ]; then
  # shellcheck disable=SC2086
  JAX_PLATFORMS=cuda step bench 100 "$python" -m jax_dmi bench $groups \
    --json "$out/bench.json"
else
  skip bench "no benchmark is for CUDA"
fi
finish
