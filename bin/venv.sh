# Sourced by bin/zdiloco and bin/test, with $root set to the checkout: `prepare_venv` leaves a complete $root/.venv.
#
# The rule: .venv is complete exactly when .venv/.zdiloco says "ready", the sum of what it was made from, and the
# checkout it was made for. Whatever else is found there is made anew (or, if only the sum differs, brought up to date),
# under a kernel lock that ends with its holder: two commands never build at once, a killed one leaves no lock behind.
# Everything is said on standard error. Plain sh: dash, bash 3.2, and the tools of BSD and busybox.
#
#   ZDILOCO_PYTHON       the Python to use instead of the first fit one on PATH
#   ZDILOCO_TORCH_INDEX  where CPU wheels of torch lie (for Linux without an NVIDIA GPU); empty: ask no such place
#   ZDILOCO_USE_TORCH    "installed": the torch that this Python has already, found through a .pth file; "fetched": one
#                        of .venv's own. Once made, .venv stays as it is until the other one is asked for

venv_say() {
    printf 'zdiloco: %s\n' "$*" >&2
}

venv_fail() {
    venv_say "$*"
    exit 1
}

# What a complete .venv was made from: a change in any of these files brings it up to date.
venv_sum() {
    cat "$root/requirements.lock" "$root/locks/torch.lock" "$root/locks/torch-cpu.lock" "$root/pyproject.toml" \
        "$root/bin/venv.sh" | cksum
}

# What the first use does and what can be set about it: part of the help of both scripts.
venv_help() {
    cat <<'TEXT'
The first use makes .venv in the checkout: about 340 MB of packages are fetched, once, and 1.5 GB of disk are used.

  ZDILOCO_PYTHON=PYTHON        use this Python (3.11 or newer, with its venv module), not the first fit one on PATH
  ZDILOCO_USE_TORCH=installed  use the torch (2.6 or newer) that this Python has, and fetch none; =fetched: the reverse
  ZDILOCO_TORCH_INDEX=URL      where CPU wheels of torch lie, for Linux without an NVIDIA GPU; empty: nowhere
TEXT
}

# Where nothing could work says so before anything is made.
venv_check_machine() {
    case ${ZDILOCO_USE_TORCH:-} in
        '' | installed | fetched) ;;
        *) venv_fail "ZDILOCO_USE_TORCH is '$ZDILOCO_USE_TORCH': allowed is 'installed', 'fetched', or nothing" ;;
    esac
    case $(uname -s) in
        MINGW* | MSYS* | CYGWIN* | Windows*)
            venv_fail "Windows is not supported: run this in a Linux of WSL 2 (wsl --install), from a checkout made there"
            ;;
        Darwin)
            own=fetched
            [ ! -e "$root/.venv/.torch" ] || own=installed
            if [ "$(uname -m)" = x86_64 ] && [ "${ZDILOCO_USE_TORCH:-$own}" != installed ]; then
                venv_fail "macOS on Intel: there is no torch 2.6 for it; use Apple silicon (and a shell that is not" \
                    "translated by Rosetta), Linux, or a build of your own with ZDILOCO_USE_TORCH=installed"
            fi
            ;;
    esac
}

venv_is_ready() {
    case ${ZDILOCO_USE_TORCH:-} in
        installed) [ -e "$root/.venv/.torch" ] || return 1 ;;
        fetched) [ ! -e "$root/.venv/.torch" ] || return 1 ;;
    esac
    [ -x "$root/.venv/bin/python" ] && [ -r "$root/.venv/.zdiloco" ] &&
        [ "$(cat "$root/.venv/.zdiloco")" = "ready $(venv_sum) $root" ]
}

prepare_venv() {
    venv_is_ready && return 0
    venv_check_machine
    [ -w "$root" ] || venv_fail "cannot write to $root, where .venv is to be made: use a checkout of your own"
    venv_find_python
    exec 9>>"$root/.venv.lock"
    venv_lock || venv_fail "another command has been preparing $root/.venv for an hour: look after it, or end it"
    venv_is_ready || venv_make
    exec 9>&-
}

# Locks the open file 9. The lock belongs to the file as this shell holds it open, so it outlives the small Python and
# ends when this shell and its children have closed the file, however they end. Korn shells hand it on only if told so.
venv_lock() {
    "$python" -c '
import fcntl, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
try:
    fcntl.flock(9, fcntl.LOCK_EX | fcntl.LOCK_NB)
except OSError:
    sys.stderr.write("zdiloco: another command is preparing .venv; waiting for it\n")
    sys.stderr.flush()
    signal.signal(signal.SIGALRM, lambda *_: sys.exit(1))
    signal.alarm(3600)
    fcntl.flock(9, fcntl.LOCK_EX)
' 9>&9
}

# Sets $python to the first that is new enough and can make environments. 3.11 first: the pinned torch is tested there.
venv_find_python() {
    if [ -n "${ZDILOCO_PYTHON:-}" ]; then
        set -- "$ZDILOCO_PYTHON"
    else
        set -- python3.11 python3.12 python3.13 python3.14 python3
    fi
    old='' bare='' alone=''
    for candidate; do
        # Old Pythons must be able to read this, too.
        version=$("$candidate" -c '
import sys
sys.stdout.write("%d.%d.%d" % sys.version_info[:3])
if sys.version_info < (3, 11):
    sys.exit(3)
try:
    import ensurepip, venv
except ImportError:
    sys.exit(4)
if sys.argv[1:] == ["installed"]:
    from importlib import metadata
    try:
        found = metadata.version("torch")
    except metadata.PackageNotFoundError:
        sys.exit(5)
    if [int(part) for part in found.split(".")[:2]] < [2, 6]:
        sys.stdout.write(" with torch " + found)
        sys.exit(5)
' "${ZDILOCO_USE_TORCH:-}" 2>/dev/null)
        case $? in
            0) python=$candidate && return 0 ;;
            3) old="$candidate is Python $version" ;;
            4) bare=$candidate ;;
            5) alone="$candidate is Python $version" ;;
        esac
    done
    ask='or name another Python 3.11 or newer in ZDILOCO_PYTHON'
    [ -z "$alone" ] || venv_fail "$alone, and ZDILOCO_USE_TORCH=installed needs torch 2.6 or newer there:" \
        "install it, or name the Python that has it in ZDILOCO_PYTHON"
    [ -z "$bare" ] || venv_fail "$bare has no venv module: install it (Debian, Ubuntu: apt install python3-venv), $ask"
    [ -z "$old" ] || venv_fail "$old, too old: install Python 3.11 or newer, $ask"
    [ -z "${ZDILOCO_PYTHON:-}" ] || venv_fail "ZDILOCO_PYTHON=$ZDILOCO_PYTHON does not run: name a Python 3.11 or newer"
    venv_fail "no Python found: install Python 3.11 or newer, $ask"
}

venv_make() {
    venv=$root/.venv mark=$root/.venv/.zdiloco log=$root/.venv/pip.log
    before=$(cat "$mark" 2>/dev/null)
    torch=${ZDILOCO_USE_TORCH:-fetched}
    [ ! -e "$venv/.torch" ] || torch=${ZDILOCO_USE_TORCH:-installed}
    if [ ! -e "$mark" ] && [ -e "$venv/pyvenv.cfg" ] && [ -x "$venv/bin/python" ]; then
        venv_fail "$venv was not made by this command: move it away, or delete it"
    fi
    trap 'exit 130' INT
    trap 'exit 143' TERM
    case $before in
        "ready "*" $root")
            [ -x "$venv/bin/python" ] || before=''
            ;;
        *) before='' ;;
    esac
    [ "$torch" = installed ] && [ ! -e "$venv/.torch" ] && before=''
    [ "$torch" = fetched ] && [ -e "$venv/.torch" ] && before=''
    if [ -n "$before" ]; then
        venv_say "requirements have changed: bringing $venv up to date"
    else
        venv_say "making $venv with $("$python" --version 2>&1) (once; some minutes)"
        if [ "$torch" = installed ]; then
            venv_say "it fetches about 140 MB of packages, and takes the torch that this Python has"
        else
            venv_say "it fetches about 340 MB of packages: torch for CPU 200 MB, the rest 140 MB, unless they are at hand"
        fi
        { rm -rf "$venv" && mkdir "$venv"; } || venv_fail "cannot make $venv anew: look at its owner and rights"
    fi
    echo building >"$mark"
    [ -n "$before" ] || "$python" -m venv --prompt zdiloco "$venv" >"$log" 2>&1 || venv_explain "making $venv"
    if [ "$torch" = installed ]; then
        rm -f "$venv/lib/"python*/site-packages/zdiloco-torch.pth
    else
        venv_install_torch
    fi
    # The locks hold the whole closure, so pip has nothing to find out; and it takes no file whose sum is not in them.
    venv_locked requirements.lock || venv_explain "installing the packages of requirements.lock"
    # No build isolation: the setuptools just installed builds it, and no network is needed.
    venv_pip --no-deps --no-build-isolation -e "$root" || venv_explain "installing zdiloco itself"
    [ "$torch" = fetched ] || venv_borrow_torch
    printf 'ready %s %s\n' "$(venv_sum)" "$root" >"$mark"
    trap - INT TERM
}

# Lets .venv see the packages of the Python it was made from, after its own: last, so that pip does not count them. By
# the folder where torch lies, since that Python may be an environment itself, which --system-site-packages skips.
venv_borrow_torch() {
    if [ -s "$venv/.torch" ]; then
        place=$(cat "$venv/.torch")
    else
        place=$("$python" -c '
import importlib.util, os
print(os.path.dirname(os.path.dirname(importlib.util.find_spec("torch").origin)))
') || venv_fail "$python has no torch any more"
    fi
    for site in "$venv/lib/"python*/site-packages; do
        printf '%s\n' "$place" >"$site/zdiloco-torch.pth" || venv_fail "cannot write to $site"
    done
    "$venv/bin/python" -c 'import torch' >"$log" 2>&1 || venv_explain "loading the torch in $place"
    printf '%s\n' "$place" >"$venv/.torch"
}

# The log holds the output of the newest command only: that of a failure.
venv_pip() {
    PIP_USER=0 "$venv/bin/python" -m pip --disable-pip-version-check --no-input install --quiet --progress-bar off \
        --retries 2 "$@" >"$log" 2>&1 </dev/null
}

# Installs what a lock of the checkout holds for this machine, and takes no file with another sum.
venv_locked() {
    name=$1
    shift
    venv_pip --no-deps --require-hashes "$@" -r "$root/$name"
}

# A wheel at hand (pip configured with find-links) wins. On Linux without an NVIDIA GPU the CPU build is asked for, as
# the default index has only the one with CUDA; that one has libraries of its own, which are in its lock.
venv_install_torch() {
    pin=$(sed -n 's/^torch==\([0-9.]*\).*/\1/p' "$root/locks/torch.lock")
    index=${ZDILOCO_TORCH_INDEX-https://download.pytorch.org/whl/cpu}
    if [ "$(uname -s)" = Linux ]; then
        venv_locked locks/torch-cpu.lock --no-index && return 0
        if ! venv_has_nvidia && [ -n "$index" ]; then
            venv_say "fetching torch $pin for CPU from $index"
            venv_locked locks/torch-cpu.lock --extra-index-url "$index" && return 0
        fi
        venv_say "taking torch $pin from the default package index: this build brings CUDA libraries, several GB"
    fi
    venv_locked locks/torch.lock || venv_explain "installing torch $pin"
}

venv_has_nvidia() {
    [ -e /proc/driver/nvidia ] || command -v nvidia-smi >/dev/null 2>&1
}

# Ends with the last lines of a failed command and one line of advice; a missing network needs no more than that line.
# An update that failed is tried again from where it stands, a first build from the start.
venv_explain() {
    [ -z "$before" ] || printf '%s\n' "$before" >"$mark"
    broken='NewConnectionError|ConnectTimeout|ReadTimeout|NameResolutionError|[Nn]ame resolution|Network is unreachable'
    if grep -E -q "$broken|ProxyError|SSLError|Connection refused|Max retries exceeded" "$log"; then
        venv_fail "$1 failed, no network: the package index cannot be reached; connect and run this again"
    fi
    tail -n 5 "$log" >&2
    if grep -q 'No space left' "$log"; then
        venv_fail "$1 failed, the disk is full: make room and run this again"
    elif grep -E -q 'No matching distribution|ResolutionImpossible' "$log"; then
        venv_fail "$1 failed, no build for this machine and Python: name Python 3.11, 3.12 or 3.13 in ZDILOCO_PYTHON"
    fi
    venv_fail "$1 failed, see above and $log: run this again; if it stays so, delete $venv first"
}
