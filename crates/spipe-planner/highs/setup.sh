#!/bin/sh
# Installs what the build needs from the system if it is missing and this user may; otherwise prints the command to type.
# cmake and libclang build the HiGHS solver; a C++ compiler and Rust 1.95 or newer are taken as given.
set -eu

missing=""
command -v cmake >/dev/null 2>&1 || missing="$missing cmake"
if ! ls /usr/lib/*/libclang*.so* /usr/lib/llvm*/lib/libclang*.so* /usr/lib*/libclang*.so* /usr/local/lib/libclang*.so* \
    /opt/homebrew/opt/llvm/lib/libclang.dylib 2>/dev/null | grep -qE 'libclang(-[0-9.]+)?\.(so|dylib)'; then
  [ -n "${LIBCLANG_PATH:-}" ] || missing="$missing libclang"
fi
command -v c++ >/dev/null 2>&1 || missing="$missing c++"
[ -n "$missing" ] || exit 0

if command -v apt-get >/dev/null 2>&1; then
  update="apt-get update"
  install="apt-get install -y cmake libclang-dev g++"
elif command -v dnf >/dev/null 2>&1; then
  update="true"
  install="dnf install -y cmake clang-devel gcc-c++"
elif command -v pacman >/dev/null 2>&1; then
  update="true"
  install="pacman -S --needed --noconfirm cmake clang gcc"
elif command -v brew >/dev/null 2>&1; then
  update="true"
  install="brew install cmake llvm"
else
  echo "missing:$missing; install cmake, libclang and a C++ compiler, then run make again" >&2
  exit 1
fi

if [ "$(id -u)" = 0 ] || [ "${install#brew}" != "$install" ]; then
  echo "installing:$missing" >&2
  DEBIAN_FRONTEND=noninteractive sh -c "$update >/dev/null && $install >/dev/null"
elif command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then
  echo "installing:$missing" >&2
  sudo sh -c "$update >/dev/null && $install >/dev/null"
else
  echo "missing:$missing; type this, then run make again:" >&2
  echo "  sudo sh -c '$update && $install'" >&2
  exit 1
fi
