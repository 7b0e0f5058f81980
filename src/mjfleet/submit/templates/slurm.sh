#!/bin/bash
{{ header }}
#SBATCH --job-name={{ job.name }}
#SBATCH --nodes={{ arguments.nodes }}
#SBATCH --ntasks-per-node={{ job.processes }}
#SBATCH --cpus-per-task={{ job.cpus }}
{% if job.gpus %}
#SBATCH --gpus-per-node={{ job.gpus }}
{% endif %}
{% if arguments.time %}
#SBATCH --time={{ arguments.time }}
{% endif %}
{% for option in arguments.sbatch %}
#SBATCH --{{ option }}
{% endfor %}
#SBATCH --signal=TERM@{{ save_seconds }}
#SBATCH --open-mode=append
#SBATCH --requeue

# In an array, the number of the job names all of its jobs.
job=$SLURM_JOB_ID
if [ -n "$SLURM_ARRAY_JOB_ID" ]; then job=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID; fi
{% if not job.run_dir %}
run={{ job.folder | quote }}/job$job
{% elif job.restarts %}
run={{ job.run_dir | quote }}
{% endif %}
# One worker that fails ends the others. srun does not take the number of cores from the job.
srun --kill-on-bad-exit=1 --cpus-per-task={{ job.cpus }} {{ python | quote }} -P -m mjfleet \
    {{ command }}{{ ' --run-dir "$run"' if not job.run_dir }} --as-trained{{ ' --agent.seed "$((SLURM_ARRAY_TASK_ID * %d))"' % (arguments.nodes * job.processes) if is_array and job.command[0] == "train" }}
code=$?
# 143: stopped by SLURM's signal, after a checkpoint.
if [ "$code" = 143 ]; then scontrol requeue "$job"; fi
{% if job.restarts %}
# Failures count, unlike preemptions and the end of the time. 2: a mistake in the command.
if [ "$code" != 143 ] && [ "$code" != 0 ] && [ "$code" != 2 ]; then
    mkdir -p "$run" && echo "$job" >> "$run/slurm_failures" &&
        [ "$(grep -cx "$job" "$run/slurm_failures")" -le {{ job.restarts }} ] && scontrol requeue "$job"
fi
{% endif %}
exit "$code"
