# shellcheck shell=bash
# What ./quickstart and ./test share: talking to a person, and getting what a machine lacks.
# Sourced, never run. Needs bash 4.

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
CACHE="${XDG_CACHE_HOME:-$HOME/.cache}/workbay"
TOOLS="$CACHE/tools"
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-$CACHE/target}"
export PATH="$TOOLS/bin:$HOME/.cargo/bin:$PATH:/usr/sbin:/sbin"

if [ -t 1 ] && [ "${CI:-}" != true ] && [ -z "${NO_COLOR:-}" ]; then
  BOLD=$'\e[1m' DIM=$'\e[2m' RED=$'\e[31m' GREEN=$'\e[32m' BLUE=$'\e[34m' PLAIN=$'\e[0m'
else
  BOLD='' DIM='' RED='' GREEN='' BLUE='' PLAIN=''
fi

# The step that is under way; the failure message names it.
STEP='starting'
# Set for a run that installs nothing: what a build needs and is not there ends it, what some tests need is named.
CHECK_ONLY=''

heading() {
  STEP="$1"
  printf '\n%s==>%s %s%s%s\n' "$BLUE" "$PLAIN" "$BOLD" "$1" "$PLAIN"
}
say() { printf '    %s\n' "$*"; }
quiet_note() { [ -n "$CHECK_ONLY" ] || printf '%s    %s%s\n' "$DIM" "$*" "$PLAIN"; }
# give_up WHAT NEXT: two lines, what went wrong and what to do about it.
give_up() {
  printf '%serror:%s %s\n       %s\n' "$RED" "$PLAIN" "$1" "$2" >&2
  exit 1
}

# may_install WHAT: ends a run that installs nothing, and says what to do.
may_install() {
  [ -z "$CHECK_ONLY" ] ||
    give_up "the tests need this, and it is not there: $1" "run './test' once without --only: it installs what is missing"
}
# may_fetch WHAT: whether to fetch what only some tests use; a run that installs nothing goes on without it.
may_fetch() {
  [ -n "$CHECK_ONLY" ] || return 0
  say "$1 is not there: the tests that use it are skipped ('./test' without --only fetches it)"
  return 1
}

# Runs a command as root: directly, by sudo, or not at all.
as_root() {
  if [ "$(id -u)" = 0 ]; then
    "$@"
  elif command -v sudo >/dev/null 2>&1; then
    sudo "$@"
  else
    give_up "'$*' needs root, and there is no sudo" "run this command as root"
  fi
}

# Whether the busybox of this machine runs without any library: the tests put it alone into a bay.
busybox_is_static() {
  local found
  found=$(command -v busybox) || return 1
  ! ldd "$found" >/dev/null 2>&1
}

# The C library's own archive: the product is linked statically.
has_static_libc() {
  command -v gcc >/dev/null 2>&1 && [ "$(gcc -print-file-name=libc.a)" != libc.a ]
}

has_library() {
  ldconfig -p 2>/dev/null | grep -q -F "$1 "
}

# packages_missing NAME...: prints those of the named Debian packages whose tool is not there.
packages_missing() {
  local name
  for name in "$@"; do
    case "$name" in
      qemu-system-x86) command -v qemu-system-x86_64 >/dev/null 2>&1 ;;
      btrfs-progs)     command -v mkfs.btrfs >/dev/null 2>&1 ;;
      busybox-static)  busybox_is_static ;;
      libc6-dev)       has_static_libc ;;
      iproute2)        command -v ip >/dev/null 2>&1 ;;
      python3-venv)    python3 -c 'import venv, ensurepip' 2>/dev/null ;;
      nftables)        command -v nft >/dev/null 2>&1 ;;
      openssh-client)  command -v ssh >/dev/null 2>&1 ;;
      libnss3-tools)   command -v certutil >/dev/null 2>&1 ;;
      bsdutils)        command -v script >/dev/null 2>&1 ;;
      libdevmapper1.02.1) has_library libdevmapper.so.1.02.1 ;;
      libseccomp2)     has_library libseccomp.so.2 ;;
      libwrap0)        has_library libwrap.so.0 ;;
      postgresql)      compgen -G '/usr/lib/postgresql/*/bin/postgres' >/dev/null ;;
      ca-certificates) [ -e /etc/ssl/certs/ca-certificates.crt ] ;;
      *)               command -v "$name" >/dev/null 2>&1 ;;
    esac || printf '%s\n' "$name"
  done
}

# need_packages NAME...: installs what is missing, asks apt nothing when nothing is.
need_packages() {
  local missing
  mapfile -t missing < <(packages_missing "$@")
  if [ ${#missing[@]} = 0 ]; then
    quiet_note "packages: all there ($*)"
    return
  fi
  may_install "${missing[*]}"
  command -v apt-get >/dev/null 2>&1 ||
    give_up "these are missing, and there is no apt-get to install them: ${missing[*]}" \
            "install them with this system's package tool, then run this again"
  say "installing ${missing[*]}"
  as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300 update
  as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq -y -o DPkg::Lock::Timeout=300 \
    install --no-install-recommends "${missing[@]}" >/dev/null
  mapfile -t missing < <(packages_missing "$@")
  [ ${#missing[@]} = 0 ] ||
    give_up "apt-get installed the packages, but these tools are still not found: ${missing[*]}" \
            "look at the output of: apt-get install ${missing[*]}"
}

# Whether $1 is at least version $2.
version_at_least() {
  [ "$(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1)" = "$2" ]
}

# need_rust COMPONENT...: a toolchain as new as the workspace asks for, with these components.
need_rust() {
  local wanted have component
  wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' "$ROOT/Cargo.toml")
  cargo --version >/dev/null 2>&1 || may_install "Rust $wanted"
  if ! command -v cargo >/dev/null 2>&1 && ! command -v rustup >/dev/null 2>&1 &&
     command -v apt-cache >/dev/null 2>&1 && apt-cache show rustup >/dev/null 2>&1; then
    say "installing rustup from this system's packages"
    as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq -y -o DPkg::Lock::Timeout=300 \
      install --no-install-recommends rustup >/dev/null
  fi
  if ! command -v cargo >/dev/null 2>&1 && ! command -v rustup >/dev/null 2>&1; then
    need_packages curl ca-certificates
    say "installing Rust $wanted for this user with the installer of https://rustup.rs"
    local installer
    installer=$(mktemp)
    if curl --proto '=https' --tlsv1.2 -sSfL --max-time 300 -o "$installer" https://sh.rustup.rs; then
      # The toolchain goes to ~/.rustup and ~/.cargo; the shell's start-up files stay as they are.
      sh "$installer" -y --quiet --no-modify-path --profile minimal --default-toolchain "$wanted" || true
    fi
    rm -f "$installer"
  fi
  if command -v rustup >/dev/null 2>&1 && ! cargo --version >/dev/null 2>&1; then
    say "installing Rust $wanted with rustup"
    rustup toolchain install "$wanted" --profile minimal
    rustup default "$wanted"
  fi
  command -v cargo >/dev/null 2>&1 ||
    give_up "Rust $wanted or newer is needed to build, and it could not be installed on this machine" \
            "install it from https://rustup.rs (as this user, no root needed), then run this again"
  have=$(cargo --version | awk '{print $2}')
  version_at_least "${have%%-*}" "$wanted" ||
    give_up "Rust $wanted or newer is needed to build; this machine has $have" \
            "run 'rustup update stable', or install it from https://rustup.rs"
  for component in "$@"; do
    "cargo-${component#cargo-}" --version >/dev/null 2>&1 && continue
    command -v rustup >/dev/null 2>&1 ||
      give_up "the Rust toolchain has no cargo-$component" "install it, or use a toolchain from https://rustup.rs"
    say "adding the Rust component $component"
    rustup component add "$([ "$component" = fmt ] && echo rustfmt || echo "$component")"
  done
  quiet_note "rust: $have"
}

# need_cargo_tool NAME VERSION: a cargo subcommand, built once into the cache when no other copy is found.
need_cargo_tool() {
  if command -v "$1" >/dev/null 2>&1; then
    quiet_note "$1: $(command -v "$1")"
    return
  fi
  may_install "$1"
  say "building $1 $2 into $TOOLS (once; this takes some minutes)"
  # From the root directory: this project's own build settings (static linking) are not for other programs.
  (cd / && CARGO_TARGET_DIR="$CACHE/tools-target" cargo install --quiet --locked --root "$TOOLS" "$1" --version "$2") ||
    give_up "$1 could not be built" "try 'cargo install --locked $1' by hand, then run this again"
  rm -rf "$CACHE/tools-target"
}

# need_vm_kernel: this release's kernel for virtual machines, unpacked into the cache and named to the tests.
# Nothing of it is installed. Where it cannot be had the tests that boot it are skipped, and say so.
need_vm_kernel() {
  local kept="$CACHE/vm-kernel" version
  [ -e "$kept/boot" ] || may_fetch 'a kernel for virtual machines' || return 0
  [ -e "$kept/boot" ] || fetch_vm_kernel "$kept" || {
    say "no kernel for virtual machines could be fetched; the tests that boot one are skipped"
    return 0
  }
  version=$(ls "$kept/lib/modules")
  export BAY_TEST_KERNEL="$kept/boot/vmlinuz-$version" BAY_TEST_MODULES="$kept/lib/modules/$version"
  quiet_note "kernel for virtual machines: $version"
}

vm_kernel_package() {
  apt-cache depends linux-image-cloud-amd64 2>/dev/null |
    sed -n 's/.*Depends: \(linux-image-[0-9][^ ]*\)$/\1/p' | head -n 1
}

# fetch_vm_kernel DIR: makes it whole or not at all.
fetch_vm_kernel() {
  local new="$1.new" package
  command -v apt-get >/dev/null 2>&1 || return 1
  package=$(vm_kernel_package)
  if [ -z "$package" ]; then
    as_root apt-get -qq -o DPkg::Lock::Timeout=300 update || return 1
    package=$(vm_kernel_package)
  fi
  [ -n "$package" ] || return 1
  say "fetching $package into $1 (once; it is not installed)"
  rm -rf "$new"
  mkdir -p "$new/root"
  # What the lists name may have been replaced since: then they are read anew, once.
  (cd "$new" && { apt-get -qq download "$package" 2>/dev/null ||
    { as_root apt-get -qq -o DPkg::Lock::Timeout=300 update && apt-get -qq download "$(vm_kernel_package)"; }; }) &&
    dpkg-deb -x "$new"/*.deb "$new/root" &&
    # Newer releases keep their modules below /usr.
    { [ -e "$new/root/lib/modules" ] || mv "$new/root/usr/lib" "$new/root/lib"; } &&
    busybox depmod -b "$new/root" "$(ls "$new/root/lib/modules")" &&
    rm -rf "$1" && mv "$new/root" "$1" && rm -rf "$new"
}

# need_unpacked NAME FILE PACKAGE...: Debian packages unpacked into the cache, of which FILE is wanted. Nothing is installed, so
# no server of theirs is started on this machine. Where they cannot be had the tests that use them say so.
need_unpacked() {
  local name="$1" file="$2" kept="$CACHE/unpacked/$1" new="$CACHE/unpacked/$1.new"
  shift 2
  if [ -x "$kept/$file" ]; then
    quiet_note "$name: $kept"
    return
  fi
  may_fetch "$name" || return 0
  say "fetching $* into $kept (once; not installed)"
  rm -rf "$new"
  mkdir -p "$new"
  # What the lists name may have been replaced since: then they are read anew, once.
  if (cd "$new" && { apt-get -qq download "$@" 2>/dev/null ||
        { as_root apt-get -qq -o DPkg::Lock::Timeout=300 update && apt-get -qq download "$@" 2>/dev/null; }; } &&
      for package in *.deb; do dpkg-deb -x "$package" . || exit 1; done && rm -- *.deb && [ -x "$file" ]); then
    rm -rf "$kept"
    mv "$new" "$kept"
  else
    rm -rf "$new"
    say "$name could not be fetched: the tests that use it are skipped"
  fi
}

# need_python VARIABLE PACKAGE VERSION: a published Python package, in an environment of its own in the cache. The tests that
# use it find its python through the variable, and say that they are skipped when it could not be had.
need_python() {
  local variable="$1" package="$2" version="$3"
  local home="$CACHE/python/$package-$version"
  local ask='import importlib.metadata as m, sys; sys.exit(m.version(sys.argv[1]) != sys.argv[2])'
  export "$variable=$home/bin/python"
  if "$home/bin/python" -c "$ask" "$package" "$version" 2>/dev/null; then
    quiet_note "$package (python): $version"
    return
  fi
  may_fetch "$package $version (python)" || return 0
  say "installing $package $version into $home"
  rm -rf "$home"
  if ! { python3 -m venv "$home" &&
         "$home/bin/python" -m pip install --quiet --disable-pip-version-check "$package==$version"; }; then
    rm -rf "$home"
    say "$package $version could not be installed: the tests that use it are skipped"
  fi
}

# need_runsc: gVisor's runsc, for the tests of the backend `gvisor`: this system's own, or Debian's newest for Debian 12 unpacked
# into the cache. It is one static program, so nothing has to be installed with it.
RUNSC_RELEASE=bookworm-backports

need_runsc() {
  local home="$CACHE/unpacked/runsc" found
  for found in "$(command -v runsc)" "$home/usr/bin/runsc"; do
    if [ -x "$found" ]; then
      export BAY_TEST_RUNSC="$found"
      quiet_note "runsc: $("$found" --version 2>/dev/null | sed -n 's/^runsc version //p') ($found)"
      return
    fi
  done
  may_fetch 'runsc' || return 0
  if fetch_runsc "$home"; then
    export BAY_TEST_RUNSC="$home/usr/bin/runsc"
  else
    say 'runsc could not be fetched: the tests of the backend gvisor are skipped'
  fi
}

# fetch_runsc DIRECTORY: package lists and package go to a directory that is removed again.
fetch_runsc() {
  local home="$1" mirror work keys=/usr/share/keyrings/debian-archive-keyring.gpg
  mirror=$(debian_mirror)
  [ -n "$mirror" ] && [ -e "$keys" ] && [ "$(uname -m)" = x86_64 ] || return 1
  say "fetching runsc into $home (once; it is not installed)"
  work=$(mktemp -d)
  # apt fetches as a user of its own.
  chmod 755 "$work"
  mkdir -p "$work/lists/partial" "$work/cache/archives/partial" "$work/root"
  : > "$work/status"
  printf 'deb [signed-by=%s] %s %s main\n' "$keys" "$mirror" "$RUNSC_RELEASE" > "$work/sources.list"
  local apt=(apt-get -qq -o Dir::State="$work" -o Dir::State::Lists="$work/lists" -o Dir::State::status="$work/status"
    -o Dir::Cache="$work/cache" -o Dir::Etc::SourceList="$work/sources.list" -o Dir::Etc::SourceParts=/dev/null
    -o Dir::Etc::PreferencesParts=/dev/null)
  if as_root "${apt[@]}" update && (cd "$work/cache" && "${apt[@]}" download runsc >/dev/null 2>&1) &&
     dpkg-deb -x "$work"/cache/runsc_*.deb "$work/root" && [ -x "$work/root/usr/bin/runsc" ]; then
    rm -rf "$home"
    mkdir -p "$(dirname "$home")"
    mv "$work/root" "$home"
  fi
  as_root rm -rf "$work"
  [ -x "$home/usr/bin/runsc" ]
}

# Memory checkpoints and live forks need this CRIU or a newer one; where the daemon looks for ours is in crates/bay-runtime.
CRIU_FLOOR=4.2
CRIU_HOME=/usr/local/lib/workbay/criu

# need_criu: CRIU in a directory of its own, with the loader and libraries it was built for, unless this system's own is
# new enough. Nothing of it is installed. Where it cannot be had checkpoints hold files only, and the tests say so.
need_criu() {
  local found
  for found in "$CRIU_HOME/criu" "$(command -v criu)"; do
    if [ -x "$found" ] && version_at_least "$(criu_version "$found")" "$CRIU_FLOOR"; then
      quiet_note "criu: $(criu_version "$found") ($found)"
      return
    fi
  done
  may_fetch "CRIU $CRIU_FLOOR or newer" || return 0
  fetch_criu || say "CRIU $CRIU_FLOOR or newer could not be fetched: checkpoints hold files only"
}

criu_version() {
  "$1" --version 2>/dev/null | sed -n 's/^Version: //p'
}

# The mirror that this machine gets Debian from.
debian_mirror() {
  # shellcheck disable=SC2016  # for apt to fill in
  apt-get indextargets --format '$(ORIGIN) $(LABEL) $(REPO_URI)' 'Created-By: Packages' 2>/dev/null |
    sed -n 's/^Debian Debian //p' | sort -u | head -n 1
}

# fetch_criu: Debian's newest, made whole or not at all. Package lists and packages go to a directory that is removed again:
# this system's own lists never hear of that release.
fetch_criu() {
  local mirror work loader keys=/usr/share/keyrings/debian-archive-keyring.gpg
  mirror=$(debian_mirror)
  [ -n "$mirror" ] && [ -e "$keys" ] && [ "$(uname -m)" = x86_64 ] || return 1
  say "fetching CRIU into $CRIU_HOME (once; it is not installed)"
  work=$(mktemp -d)
  # apt fetches as a user of its own.
  chmod 755 "$work"
  mkdir -p "$work/lists/partial" "$work/cache/archives/partial" "$work/root"
  : > "$work/status"
  printf 'deb [signed-by=%s] %s sid main\n' "$keys" "$mirror" > "$work/sources.list"
  local apt=(apt-get -qq -o Dir::State="$work" -o Dir::State::Lists="$work/lists" -o Dir::State::status="$work/status"
    -o Dir::Cache="$work/cache" -o Dir::Etc::SourceList="$work/sources.list" -o Dir::Etc::SourceParts=/dev/null
    -o Dir::Etc::PreferencesParts=/dev/null)
  if as_root "${apt[@]}" update &&
     as_root "${apt[@]}" -y --no-install-recommends --download-only install criu >/dev/null &&
     (for package in "$work"/cache/archives/*.deb; do dpkg-deb -x "$package" "$work/root" || exit 1; done) &&
     loader=$(cd "$work/root" && find . -name 'ld-linux-x86-64.so.2' | head -n 1) && [ -n "$loader" ]
  then
    rm -rf "$work/root/usr/share"
    # Relative to itself, so that the directory may be moved; without other programs where it can, because somebody waits.
    cat > "$work/root/criu" <<SCRIPT
#!/bin/sh
home=\${0%/*}
[ ! -L "\$0" ] || home=\$(dirname "\$(readlink -f "\$0")")
exec "\$home/${loader#./}" --library-path "\$home/usr/lib/x86_64-linux-gnu" "\$home/usr/sbin/criu" "\$@"
SCRIPT
    chmod 755 "$work/root" "$work/root/criu"
    if version_at_least "$(criu_version "$work/root/criu")" "$CRIU_FLOOR"; then
      as_root mkdir -p "$(dirname "$CRIU_HOME")" && as_root rm -rf "$CRIU_HOME" "$CRIU_HOME.new" &&
        as_root cp -a --no-preserve=ownership "$work/root" "$CRIU_HOME.new" && as_root mv "$CRIU_HOME.new" "$CRIU_HOME"
    fi
  fi
  as_root rm -rf "$work"
  [ -x "$CRIU_HOME/criu" ]
}
