#!/bin/sh
# run.sh SECONDS TARGET...: builds the fuzz targets with coverage and runs each one. `-C passes` is for nightly compilers;
# RUSTC_BOOTSTRAP=1 lets the stable one take it.
set -eu
cd "$(dirname "$0")"
seconds=$1
shift
host=$(rustc -vV | sed -n 's/^host: //p')
export RUSTC_BOOTSTRAP=1
export RUSTFLAGS="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares --cfg fuzzing"
# With a target, flags do not reach build scripts and macros, which have no fuzzer to report to.
${CARGO:-cargo} build --release --locked --target "$host"
mkdir -p artifacts
failed=
for target in "$@"; do
  mkdir -p "target/found/$target"
  echo "fuzzing $target for $seconds s"
  SPIPE_FUZZ_TARGET=$target "target/$host/release/target" "target/found/$target" "corpus/$target" \
    -max_total_time="$seconds" -timeout=20 -max_len=8192 -artifact_prefix="artifacts/$target-" -print_final_stats=0 || failed="$failed $target"
done
[ -z "$failed" ] || { echo "found faults:$failed; see crates/fuzz/artifacts"; exit 1; }
