#!/bin/bash
# The chart of every system, with three sentences on what to see in it: reports/gallery.md and reports/gallery/.
# SPIPE is the command. Systems of one GPU are planned on `one-gpu`, others on `rtx3090-x4-two-sockets`; schedules alone have unit times.
set -eu
cd "$(dirname "$0")/../../.."
spipe=${SPIPE:-target/release/spipe}
out=reports/gallery
mkdir -p "$out"
page=reports/gallery.md
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cat > "$page" <<'HEAD'
# One chart of each system

`make gallery` makes this page. The systems train GPT-2 with 8 sequences of 512 tokens; schedules alone have stages whose forward, backward-input
and backward-weight take 1 ms each. Pale intervals are bubbles, named by what the device waits for. `spipe timeline TRACE -o x.html` draws such a
chart to zoom into, and `spipe simulate PLAN --explain` says what decides its length.
HEAD

# chart NAME SENTENCES: adds the picture $out/NAME.svg.
chart() {
  printf '\n## %s\n\n%s\n\n![%s](gallery/%s.svg)\n' "$1" "$2" "the chart of $1" "$1" >> "$page"
}

# schedule NAME SENTENCES OPTIONS...
schedule() {
  local name=$1 words=$2
  shift 2
  "$spipe" schedule "$name" "$@" -o "$out/$name.svg" > "$work/log" 2>&1 || { cat "$work/log"; exit 1; }
  chart "$name" "$words"
}

# planned NAME MACHINE SENTENCES OPTIONS...
planned() {
  local name=$1 machine=$2 words=$3
  shift 3
  "$spipe" plan --model gpt2 --hardware "$machine" --global-batch 8 --seq-len 512 --system "$name" --time-limit 5s \
    -o "$work/plan.json" "$@" > "$work/log" 2>&1 || { cat "$work/log"; exit 1; }
  "$spipe" simulate "$work/plan.json" -o "$work/trace.json" > "$work/log" 2>&1
  "$spipe" timeline "$work/trace.json" -o "$out/$name.svg"
  chart "$name" "$words"
}

printf '\n# Schedules alone\n' >> "$page"
unit="--devices 4 --microbatches 8 --forward 1ms --backward-input 1ms --backward-weight 1ms"
schedule gpipe "All forwards come before all backwards. Each device waits for the ramp at the start and at the turn, p − 1 passes of each kind. Every microbatch is held until its backward, so memory grows with their number." $unit
schedule 1f1b "After its warm-up, each device alternates one forward with one backward. The bubbles are as long as those of GPipe. The first device holds at most p microbatches, however many there are." $unit
schedule hybrid "This is 1F1B whose CPU stages get a head start of some forwards. With equal stages and no head start it is 1F1B itself. Its use is where a slow stage would otherwise be waited for." $unit
schedule interleaved-1f1b "Each device has two chunks of the model, and microbatches pass through all devices twice. The ramps consist of shorter passes, so the bubbles halve. The price is twice the number of boundary copies." $unit
schedule zb-h1 "The backward is split: the gradient of the input (I) goes to the device before at once, that of the weights (W) waits. W passes fill what would be the drain. Memory is that of 1F1B." $unit
schedule zb-h2 "More warm-up forwards fill the bubble before the first backward. W passes fill the drain. There is hardly any bubble left, for about twice the memory of 1F1B." $unit
schedule zb-1p "The order is found by a search at the memory of 1F1B. With equal times it resembles zb-h1. Unequal times are where it gains." $unit
schedule zb-2p "The same search with twice the memory of 1F1B. Bubbles remain only at the very start and end. Compare the first device with that of zb-h2." $unit
schedule zb-v "Two stages on each device in the shape of a V: the first device also has the last stage. Its first backward starts without a way back through all devices. Memory is balanced and that of 1F1B." $unit
schedule v-half "The V with less memory: with many devices about half of that of 1F1B. Forwards start later, so that fewer activations are alive. Some bubbles are the price." $unit
schedule v-min "The V with the least memory: with many devices about a third of that of 1F1B. Every forward waits until the backward of an older microbatch is near. The bubbles repeat regularly in the steady part." $unit
schedule gis "Groups of microbatches pass through one chunk before the next. The group sets how long activations live. With the largest group it is interleaved 1F1B." $unit
schedule gis-h "The same with groups half as large. About half of the activations are alive at a time. The chart has the rhythm of the small groups." $unit
schedule po-h "The block of gis-h in which half of the chunks copy their activations to the host. The copies run beside the passes. Memory shrinks while passes hide the copies." $unit
schedule po-f "All chunks copy their activations to the host. Loads and stores keep the links busy throughout. Passes that are too short to hide a copy would wait here." $unit

printf '\n# On one GPU\n' >> "$page"
planned gpu-only one-gpu "Everything is on the GPU, and the compute lane has no bubble. There are no copies. The optimizer steps at the end are short, because GPU memory is fast."
planned checkpointing one-gpu "The forward saves only inputs, and the backward starts by repeating it (R). The lane is busy all the time, with about a third more arithmetic. The activations are in memory only during the backward."
planned zero-offload one-gpu "Gradients leave for the host, where the CPU steps the optimizer. Parameters come back at the end. The GPU drains while the CPU works: it is the slower one here."
planned zero-offload-delayed one-gpu "The same with the optimizer one iteration behind. The CPU works beside forward and backward. Losses differ a little, because gradients are one step old."
planned superpipeline one-gpu "A window of layers is on the GPU, and the next ones are loaded meanwhile. Loads (h2d) and stores (d2h) run beside the compute. Every load is in time, so there is no bubble."
planned naive-swap one-gpu "Load, run, store, without overlap. The GPU is idle for more than half of the time. The chart shows what Superpipeline hides."
planned cpu-only one-gpu "Everything runs on the CPU. There is no lane of a GPU. Compare the time axis with the others."

printf '\n# On four GPUs and two sockets\n' >> "$page"
planned mobius rtx3090-x4-two-sockets "All microbatches pass through a stage before its device takes the next one. Forward and backward have ramps of their own. GPT-2 is small, so its weights stay on the GPUs."
planned spipe rtx3090-x4-two-sockets "Forward and backward have stages of their own, and the CPU steps the optimizer during the backward. Checkpoints move from where a stage ran forward to where it runs backward. The optimizer starts with the first gradients, and runs into the next iteration."
planned zero-infinity rtx3090-x4-two-sockets "This is fsdp whose parts may live in DRAM. GPT-2 is small, so they stay on the GPUs and the chart is that of fsdp. With a larger model, copies from DRAM appear beside the gathers."
planned fsdp rtx3090-x4-two-sockets "Each GPU that takes part holds an equal share of everything, and gathers the rest before use. Gathers run ahead of the compute. Cards without peer access exchange through host memory, where the gathers of all four meet."
echo "wrote $page"
