run={{ job.run_dir | quote }}
if [ -f "$run/run.json" ] || [ -f "$run/group.json" ]; then
    set -- {{ job.resume }} --resume "$run"
else
    set -- {{ job.begin }} --run-dir "$run"
fi
{% if job.nodes * job.processes == 1 %}
exec python -m mjfleet {{ job.kind }} "$@" {{ job.command }}
{% else %}
{% if arguments.cluster == "sky" %}
first=$(head -n 1 <<< "$SKYPILOT_NODE_IPS")
host=$SKYPILOT_NODE_RANK
{% else %}
first={{ job.name }}-train-0-0.{{ job.name }}
host=$JOB_COMPLETION_INDEX
{% endif %}
exec torchrun --nnodes {{ job.nodes }} --nproc-per-node {{ job.processes }} \
    --node-rank "$host" --master-addr "$first" --master-port 29500 \
    -m mjfleet {{ job.kind }} "$@" {{ job.command }}
{% endif %}
