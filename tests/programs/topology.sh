# options: --cores 2
# Processors as lscpu and the files of sysfs(5) tell of them. How many there are and how they share caches and threads is the machine's
# business: what is compared is what the first one says of itself, and that lscpu understands it all.
$RUN lscpu -p=CPU,NODE | grep '^0,'
$RUN lscpu | grep -c '^Architecture:'
$RUN lscpu --extended | awk 'NR == 2 { print $1, $2, $3 }'
$RUN sh -c '
    cd /sys/devices/system/cpu
    for list in core_cpus_list thread_siblings_list package_cpus_list core_siblings_list die_cpus_list; do
        case $(cat cpu0/topology/$list) in
            0 | 0[,-]*) echo "it is among its $list" ;;
            *) echo "$list: $(cat cpu0/topology/$list)" ;;
        esac
    done
    for mask in core_cpus thread_siblings package_cpus; do
        case $(cat cpu0/topology/$mask) in
            *[13579bdf]) echo "and in its $mask" ;;
            *) echo "$mask: $(cat cpu0/topology/$mask)" ;;
        esac
    done
    cat cpu0/topology/core_id cpu0/topology/physical_package_id
    cd cpu0/node0/cpu0 && ls -d topology'
