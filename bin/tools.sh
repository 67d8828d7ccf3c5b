# Sourced by bin/release and bin/lock after bin/venv.sh, with $root set: `prepare_tools` leaves the tools of
# locks/release.lock in $tools, an environment of its own beside .venv, and nothing of theirs in what users install.

prepare_tools() {
    tools=$root/build/tools
    made=$(cat "$root/locks/release.lock" "$root/bin/tools.sh" | cksum)
    [ "$(cat "$tools/.zdiloco" 2>/dev/null)" = "$made $root" ] && return 0
    venv_find_python
    venv_say "making $tools (once): what builds, checks and audits a release"
    { rm -rf "$tools" && mkdir -p "$root/build"; } || venv_fail "cannot write to $root/build"
    use_venv "$tools" "$root/build/tools.log"
    "$python" -m venv "$tools" >"$log" 2>&1 || venv_explain "making $tools"
    venv_locked locks/release.lock || venv_explain "installing locks/release.lock"
    printf '%s %s\n' "$made" "$root" >"$tools/.zdiloco"
}

# use_venv FOLDER LOG: what the functions of bin/venv.sh work on from now on.
# shellcheck disable=SC2034
use_venv() { venv=$1 log=$2 before=''; }
