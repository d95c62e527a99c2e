# Run inside a bay by `bay bundle` and `bay branch`: makes a pack of the work in /workspace and prints
#
#     tip COMMIT committed|uncommitted|whole      the pack is ROOM/pack
#     refused WHY                                 nothing is left behind
#
# Uncommitted changes become one commit on top of HEAD. It is made with an index and an object store of its own, so that
# neither the repository's index, nor HEAD, nor its objects, nor the working tree are touched. Hooks and the file system
# monitor stay off; filters stay on, because without them Git LFS and the like would store the wrong content. Large files
# are not held in memory, of which the bay may have little.
#
# HAVE is a commit whose objects can be left out, BASE the one the bay began from; `-` where there is none.
#
# usage: sh -s -- pack ROOM all|committed HAVE BASE MOST-BYTES BAY MESSAGE

room=$2 want=$3 have=$4 base=$5 most=$6 bay=$7 message=$8

refuse() {
    head -c 4096 "$room/said" >&2 2>/dev/null
    cd / && rm -rf "$room"
    printf 'refused %s\n' "$1"
    exit 0
}

g() {
    git --no-optional-locks --no-pager -c safe.directory='*' -c core.hooksPath=/dev/null -c core.fsmonitor=false \
        -c core.untrackedCache=false -c core.splitIndex=false -c pack.useBitmaps=false -c gc.auto=0 \
        -c maintenance.auto=false -c submodule.recurse=false -c advice.addEmbeddedRepo=false \
        -c advice.graftFileDeprecated=false -c core.bigFileThreshold=16m -c pack.windowMemory=64m \
        -c pack.deltaCacheSize=32m "$@"
}

# The first line of what git says: a git that never stops talking is cut off.
line() {
    g "$@" 2>"$room/said" | head -c 4096 | head -n 1
}

# A file may vanish while it is added; the next try does not look for it.
add() {
    for _ in 1 2 3; do
        g add -A >/dev/null 2>"$room/said" && return 0
    done
    return 1
}

find_repository() {
    if [ ! -e .git ]; then
        [ "$want" = all ] || refuse no-repository
        state=whole
        GIT_DIR=$room/fresh.git
        export GIT_DIR GIT_WORK_TREE=/workspace
        g init --quiet --template= >/dev/null 2>"$room/said" || refuse failed
    fi
    [ "$(line rev-parse --is-inside-work-tree)" = true ] || refuse failed
    [ "$(line rev-parse --is-shallow-repository)" != true ] || refuse shallow
    index=$(line rev-parse --git-path index)
    objects=$(cd "$(line rev-parse --git-path objects)" 2>/dev/null && pwd -P) || refuse failed
    mkdir "$room/objects"
    export GIT_OBJECT_DIRECTORY="$room/objects" GIT_ALTERNATE_OBJECT_DIRECTORIES="$objects"
    tip=$(line rev-parse --verify --quiet 'HEAD^{commit}')
}

commit_changes() {
    export GIT_INDEX_FILE="$room/index"
    if [ -f "$index" ]; then
        # With its time: git tells from it which files may have changed since without their time showing it.
        cp -p "$index" "$room/index" || refuse failed
    elif [ -n "$tip" ]; then
        g read-tree "$tip" 2>"$room/said" || refuse failed
    fi
    add || refuse failed
    tree=$(line write-tree)
    [ -n "$tree" ] || refuse failed
    if [ -n "$tip" ]; then
        [ "$tree" != "$(line rev-parse "$tip^{tree}")" ] || return 0
    elif [ -z "$(line ls-files)" ]; then
        refuse nothing
    fi
    [ "$state" = whole ] || state=uncommitted
    if [ -z "$(line -c user.useConfigOnly=true var GIT_AUTHOR_IDENT)" ]; then
        export GIT_AUTHOR_NAME="bay $bay" GIT_AUTHOR_EMAIL="$bay@bay.invalid"
        export GIT_COMMITTER_NAME="bay $bay" GIT_COMMITTER_EMAIL="$bay@bay.invalid"
    fi
    tip=$(printf '%s\n' "$message" | line commit-tree "$tree" ${tip:+-p "$tip"})
}

main() {
    find /tmp -maxdepth 1 -name '.bay-leaving-*' -mmin +120 -exec rm -rf {} + 2>/dev/null
    umask 077
    mkdir "$room" || exit 1
    trap 'rm -rf "$room"; exit 1' HUP INT TERM
    command -v git >/dev/null 2>&1 || refuse no-git
    unset GIT_DIR GIT_WORK_TREE GIT_INDEX_FILE GIT_OBJECT_DIRECTORY GIT_ALTERNATE_OBJECT_DIRECTORIES GIT_NAMESPACE \
        GIT_COMMON_DIR GIT_CONFIG_PARAMETERS GIT_CONFIG_COUNT
    export LC_ALL=C GIT_CEILING_DIRECTORIES=/ GIT_TERMINAL_PROMPT=0 GIT_NO_LAZY_FETCH=1 GIT_NO_REPLACE_OBJECTS=1
    export GIT_GRAFT_FILE=/dev/null
    cd /workspace || refuse failed
    state=committed
    find_repository
    [ "$want" = committed ] || commit_changes
    [ -n "$tip" ] || refuse no-commit
    [ "$tip" != "$base" ] || refuse nothing
    : >"$room/said"
    {
        printf '%s\n' "$tip"
        # A repository that was made anew does not know where the bay began.
        if [ "$have" != - ] && g cat-file -e "$have^{commit}" 2>/dev/null; then
            printf '^%s\n' "$have"
        fi
    } | {
        g pack-objects --revs --stdout --quiet --delta-base-offset 2>"$room/said"
        echo $? >"$room/status"
    } | head -c "$most" >"$room/pack"
    [ "$(cat "$room/status")" = 0 ] || refuse failed
    rm -rf "$room/objects" "$room/index" "$room/fresh.git"
    printf 'tip %s %s\n' "$tip" "$state"
}

main "$@" </dev/null
exit
