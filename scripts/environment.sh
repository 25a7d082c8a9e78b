# Sourced by the scripts here: makes a virtual environment and installs the project into it.
# It installs only what constraints.txt pins, and only again when the pins or pyproject.toml change.

make_environment() { # directory, what to install
    directory=$1
    what=$2
    python=${PYTHON:-python3}
    if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
        echo "error: $python is missing or older than Python 3.10 ($("$python" --version 2>&1));" \
            "set PYTHON to a newer one, e.g. PYTHON=python3.12 $0" >&2
        exit 1
    fi
    wanted="$("$python" --version) $what $(cat constraints.txt pyproject.toml | cksum)"
    if [ "$(cat "$directory/installed" 2>/dev/null)" = "$wanted" ]; then
        return
    fi
    echo "making $directory: installing $what as constraints.txt pins it (torch included) ..."
    rm -rf "$directory"
    "$python" -m venv "$directory"
    "$directory/bin/python" -m pip install --quiet --disable-pip-version-check \
        --constraint constraints.txt --editable "$what"
    echo "$wanted" >"$directory/installed"
}
