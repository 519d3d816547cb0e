#!/bin/bash
# A SLURM of one node on this machine, for trying --on slurm and for tests/test_on_slurm.py. As root on Debian or Ubuntu:
#   apt-get install -y slurm-wlm munge
#   bash tests/slurm_node.sh start /tmp/slurm     then, in each shell:  export SLURM_CONF=/tmp/slurm/slurm.conf
#   bash tests/slurm_node.sh stop /tmp/slurm
# Everything it makes lies in that folder; no cgroups, no accounting, jobs start again seconds after they are put back.
set -euo pipefail
what=${1:?start or stop} at=$(realpath -m "${2:?a folder}")

start() {
    mkdir -p "$at"/{state,spool,log,munge}
    chmod 755 "$at" "$at/munge"
    head -c 1024 /dev/urandom >"$at/munge.key" && chmod 600 "$at/munge.key"
    local host cpus memory
    host=$(hostname -s) cpus=$(nproc) memory=$(awk '/MemTotal/ {print int($2 / 1024)}' /proc/meminfo)
    cat >"$at/slurm.conf" <<EOF
ClusterName=one
SlurmctldHost=$host(127.0.0.1)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=$at/munge/socket,cred_expire=5
SlurmctldPort=16817
SlurmdPort=16818
StateSaveLocation=$at/state
SlurmdSpoolDir=$at/spool
SlurmctldPidFile=$at/slurmctld.pid
SlurmdPidFile=$at/slurmd.pid
SlurmctldLogFile=$at/log/slurmctld
SlurmdLogFile=$at/log/slurmd
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=1
JobAcctGatherParams=OverMemoryKill
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
DefMemPerCPU=1024
MinJobAge=60
KillWait=10
ReturnToService=2
SchedulerParameters=batch_sched_delay=0,sched_min_interval=100000
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
NodeName=$host NodeAddr=127.0.0.1 CPUs=$cpus RealMemory=$memory
PartitionName=main Nodes=$host Default=YES MaxTime=60 State=UP PriorityTier=1
PartitionName=urgent Nodes=$host MaxTime=60 State=UP PriorityTier=2
EOF
    munged --force --key-file="$at/munge.key" --socket="$at/munge/socket" --pid-file="$at/munged.pid" \
        --log-file="$at/log/munged" --seed-file="$at/munge.seed"
    export SLURM_CONF=$at/slurm.conf
    slurmctld
    slurmd -N "$host"
    for _ in $(seq 50); do
        sinfo --noheader --format=%T 2>/dev/null | grep -q idle && break
        sleep 0.2
    done
    sinfo
}

stop() {
    for daemon in slurmd slurmctld munged; do
        [ -f "$at/$daemon.pid" ] && kill "$(cat "$at/$daemon.pid")" || true
    done
}

"$what"
