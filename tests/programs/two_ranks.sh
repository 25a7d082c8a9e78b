# A launcher of two ranks that reacts to nothing.
for rank in 0 1; do RANK=$rank WORLD_SIZE=2 "$@" & done
wait
