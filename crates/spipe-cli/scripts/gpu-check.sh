#!/bin/sh
# Checks a device with the built binary alone: no toolchain, no network. Writes reports/gpu/DEVICE/.
#
#   crates/spipe-cli/scripts/gpu-check.sh cuda:0          a GPU, under a cap of 12 GiB, with a model of 1.5 billion parameters
#   crates/spipe-cli/scripts/gpu-check.sh emulated:0      the same steps on CPU cores, with the demo's model
#   crates/spipe-cli/scripts/gpu-check.sh wgpu:0          on any device of Vulkan, be it a program: with a model that such a one gets through
#
# SPIPE names the binary; CAP, MODEL, SMALL, STEPS, LONG_STEPS, PRECISIONS, DATA and OUT replace what is chosen
# below. Where PYTHON has PyTorch that knows the device (or TORCH_DEVICE), PyTorch with CPU offload trains the same model.
set -eu

device=${1:-cuda:0}
spipe=${SPIPE:-target/release/spipe}
python=${PYTHON:-python3}
pytorch=crates/spipe-exec/benches/pytorch/offload.py
torch_device=${TORCH_DEVICE:-}
steps=${STEPS:-20}
# Of the larger model, whose steps take seconds.
long=${LONG_STEPS:-6}
data=${DATA:-README.md}
small=${SMALL:-demo}
budget=30s
name=$(printf '%s' "$device" | tr ':' '-')
case $device in
  cuda:*)
    cap=${CAP:-12 GiB}
    model=${MODEL:-zero-bubble-1.5b}
    sequence=${SEQUENCE:-1024}
    torch_device=${TORCH_DEVICE:-$device}
    precisions=${PRECISIONS:-fp32 bf16}
    # f32 products of tensor cores are rounded to TF32's 11 bits.
    tolerance=${TOLERANCE:-0.01}
    ;;
  wgpu:*)
    cap=${CAP:-12 MiB}
    model=${MODEL:-crates/spipe-cli/scripts/gpu-check-model.toml}
    small=${SMALL:-$model}
    sequence=${SEQUENCE:-64}
    steps=${STEPS:-6}
    budget=60s
    # The 16 bits that Vulkan's devices compute in.
    precisions=${PRECISIONS:-fp32 fp16}
    tolerance=${TOLERANCE:-0.0001}
    ;;
  *)
    cap=${CAP:-400 MiB}
    model=${MODEL:-demo}
    sequence=${SEQUENCE:-128}
    # Cores that stand for a device compute in f32 however wide the numbers are that it holds.
    precisions=${PRECISIONS:-fp32}
    # The same kernels on the same library, on another number of threads.
    tolerance=${TOLERANCE:-0.0001}
    ;;
esac
# Loaders of Vulkan complain where there is none.
export XDG_RUNTIME_DIR="${XDG_RUNTIME_DIR:-${TMPDIR:-/tmp}}"
out=${OUT:-reports/gpu/$name}
mkdir -p "$out"
report=$out/report.md
failures=0

say() { printf '%s\n' "$*" | tee -a "$report"; }
fail() { failures=$((failures + 1)); say "FAILED: $*"; }
# The value of a key in JSON of one key per line, or one object per line.
value() { tr ',{}' '\n\n\n' | sed -n "s/^ *\"$1\": *//p" | head -n 1; }
every() { tr ',{}' '\n\n\n' | sed -n "s/^ *\"$1\": *//p"; }
# Numbers as people read them: of which there may be none.
rounded() { printf '%s' "${1:-}" | awk -v form="$2" '{ printf form, $1 }'; }
mebibytes() { printf '%s' "${1:-}" | awk '{ printf "%.0f MiB", $1 / 1048576 }'; }
fenced() { say '```text' && tee -a "$report" < "$1" && say '```'; }

# calibrate MACHINE MODEL SEQUENCE: a machine in $out/MACHINE.toml, on which the layers of the model are measured
calibrate() {
  "$spipe" calibrate --devices "$device,cpu:0" --model "$2" --seq-len "$3" --emulated-memory "$cap" \
    --time-limit "$budget" -o "$out/$1.toml" > "$out/$1.txt" 2>&1 && return
  fail "calibration with $2"
  cat "$out/$1.txt" >&2
  exit 1
}

# plan NAME MACHINE MODEL SEQUENCE SYSTEM PRECISION
plan() {
  "$spipe" plan --model "$3" --hardware "$out/$2.toml" --seq-len "$4" --global-batch 8 --microbatch 1 --precision "$6" \
    --materialised-attention --system "$5" --time-limit 10s -o "$out/$1.plan.json" > "$out/$1.plan.txt" 2>&1
}

# train NAME STEPS: lines of JSON to NAME.steps.jsonl, the trace to NAME.measured.json
train() {
  "$spipe" run "$out/$1.plan.json" --data "$data" --steps "$2" --bind "gpu0=$device" --format json \
    -o "$out/$1.measured.json" > "$out/$1.steps.jsonl" 2> "$out/$1.run.txt"
}

: > "$report"
say "# $device"
say ""
# What the device calls itself, where somebody can be asked.
case $device in
  cuda:*) known=$(nvidia-smi --query-gpu=name --format=csv,noheader -i "${device#*:}" 2> /dev/null || true) ;;
  wgpu:*) known=$(vulkaninfo --summary 2> /dev/null | sed -n 's/^[[:space:]]*deviceName[[:space:]]*= *//p' | head -n 1) ;;
  *) known= ;;
esac
say "\`crates/spipe-cli/scripts/gpu-check.sh $device\`${known:+ ($known)}, $(date -u +%Y-%m-%d), $(uname -m), cap $cap."
say ""
say "## Rates"
say ""
say "Products, sums, copies, memory, optimizer and launches of $device and the CPU, both at work; spreads are in the last column."
say ""
calibrate machine "$small" 128
fenced "$out/machine.txt"
machine=machine
if [ "$model" != "$small" ] || [ "$sequence" != 128 ]; then
  # Layers of other shapes, or of sequences of another length, have rates of their own.
  machine=machine-of-systems
  calibrate "$machine" "$model" "$sequence"
fi

say ""
say "## Parity"
say ""
# losses NAME SYSTEM PRECISION: those of training the small model
losses() {
  plan "$1" machine "$small" 128 "$2" "$3" && train "$1" "$steps" || fail "training $small with $2 in $3"
  every loss < "$out/$1.steps.jsonl" > "$out/$1.losses" || true
}
losses parity-cpu-only cpu-only fp32
for precision in $precisions; do
  run=parity-gpu-only-$precision
  losses "$run" gpu-only "$precision"
  off=$(paste "$out/$run.losses" "$out/parity-cpu-only.losses" | awk '
    NF == 2 { d = ($1 - $2) / $2; if (d < 0) d = -d; if (d > most) most = d; lines += 1 }
    END { if (lines) printf "%.6f", most; else print 1 }')
  # bf16 has 8 bits of each number; losses are means of many.
  case $precision in fp32) allowed=$tolerance ;; *) allowed=${NARROW_TOLERANCE:-0.05} ;; esac
  say "Largest relative difference of $steps losses between $device in $precision and the CPU in fp32: $off (tolerance $allowed)."
  awk "BEGIN { exit !($off <= $allowed) }" || fail "parity in $precision"
done

say ""
say "## Systems under the cap"
say ""
say "| system | precision | predicted | measured | error | tokens/s | lanes' time over the iteration | held of $cap | reserved by the allocator |"
say "|---|---|---|---|---|---|---|---|---|"
# row SYSTEM PRECISION
row() {
  named="$1 | $2"
  run=systems-$1-$2
  if ! plan "$run" "$machine" "$model" "$sequence" "$1" "$2"; then
    say "| $named | no plan: $(grep -m 1 error "$out/$run.plan.txt" | tr '|' '/') | | | | | | |"
    return
  fi
  "$spipe" simulate "$out/$run.plan.json" -o "$out/$run.predicted.json" > /dev/null 2>&1
  if ! train "$run" "$long"; then
    fail "$1 in $2: $(grep -m 1 error "$out/$run.run.txt")"
    return
  fi
  "$spipe" compare "$out/$run.predicted.json" "$out/$run.measured.json" --format json > "$out/$run.compare.json"
  error=$(value iteration-error < "$out/$run.compare.json")
  predicted=$(value predicted-ms < "$out/$run.compare.json")
  measured=$(value measured-ms < "$out/$run.compare.json")
  rate=$(every tokens-per-second < "$out/$run.steps.jsonl" | sort -n | awk '{ all[NR] = $1 } END { print all[int((NR + 1) / 2)] }')
  # Above 1, copies and computations overlap.
  overlap=$(sed -n '/"by-lane"/,$p' "$out/$run.compare.json" | every measured-ms | awk -v all="$measured" '{ sum += $1 } END { printf "%.2f", sum / all }')
  held=$(grep '"event":"end"' "$out/$run.steps.jsonl" | every held-bytes | head -n 1)
  reserved=$(grep '"event":"end"' "$out/$run.steps.jsonl" | every reserved-bytes | head -n 1)
  say "| $named | $(rounded "$predicted" '%.1f ms') | $(rounded "$measured" '%.1f ms') | $(awk "BEGIN { printf \"%+.1f %%\", 100 * $error }") | $(rounded "$rate" '%.0f') | $overlap | $(mebibytes "$held") | $(mebibytes "$reserved") |"
}
for system in superpipeline zero-offload auto; do
  for precision in $precisions; do row "$system" "$precision"; done
done
say ""
say "A run fails rather than hold more than the cap. The allocator keeps what it has had, and what lies unused between."
say ""
say "## PyTorch with CPU offload"
say ""
known=$([ -z "$torch_device" ] || "$python" -c 'import sys, torch; torch.zeros(1, device=sys.argv[1]); print(torch.__version__)' "$torch_device" 2> /dev/null) || true
if [ -z "$known" ]; then
  say "No PyTorch here that knows ${torch_device:-$device}: the comparison was left out."
else
  say "PyTorch $known on $torch_device: the same model, batches, precision and cap, with fused attention. \`fsdp\`: FSDP2 with \`CPUOffloadPolicy\`;"
  say "\`zero-offload\`: parameters and gradients on the device. Both step with its fused AdamW on the CPU, in f32."
  say ""
  say "| strategy | precision | measured | tokens/s | allocated of $cap |"
  say "|---|---|---|---|---|"
  for strategy in fsdp zero-offload; do
    for precision in $precisions; do
      peer=pytorch-$strategy-$precision
      if ! "$python" "$pytorch" "$strategy" "$out/systems-auto-$precision.plan.json" --device "$torch_device" --cap "$cap" \
        --steps 3 --text "$data" > "$out/$peer.json" 2> "$out/$peer.txt"; then
        say "| $strategy | $precision | $(tail -n 1 "$out/$peer.txt" | tr '|' '/') | | |"
        continue
      fi
      measured=$(value iteration-ms < "$out/$peer.json")
      rate=$(value tokens-per-second < "$out/$peer.json")
      held=$(value peak-bytes < "$out/$peer.json")
      say "| $strategy | $precision | $(rounded "$measured" '%.1f ms') | $(rounded "$rate" '%.0f') | $(mebibytes "$held") |"
    done
  done
fi
[ "$failures" = 0 ] || exit 6
