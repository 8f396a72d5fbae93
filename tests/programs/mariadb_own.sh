# Some of MariaDB's own tests, with servers that are started, killed and recovered.
# needs: mariadb-test mariadb-server mariadb-client perl
# options: --memory 4G --cores 2
# timeout: 300
cat > inner.sh <<'IN'
cd /usr/share/mysql/mysql-test
LC_ALL=C perl ./mysql-test-run.pl --vardir="$VAR" --force --parallel=2 --retry=0 \
	main.{select,join,group_by,union,func_math,type_datetime,insert_select,update,delete,kill,user_var,loaddata} \
	innodb.{gap_locks,deadlock_report,read_only_recovery} maria.{maria,concurrent,kill,lock} json.json_no_table 2>&1
echo "ended with $?"
IN
VAR=$DIR/var $RUN bash inner.sh > log
grep -E '\[ (pass|fail|skipped) \]|^mysqltest:|^Completed|^ended' log | sed -e 's/ w[12] / /' -e 's/ *[0-9]*$//' | sort
rm -rf var inner.sh log
