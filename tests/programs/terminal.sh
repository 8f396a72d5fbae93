# needs: python3 sqlite3 bash
# Interactive programs on a terminal: prompt, line editing, history, window
# size, Ctrl-C and Ctrl-D, and the terminal's settings at the end; a shell's job control.
# timeout: 90
export TERM=xterm INPUTRC=/dev/null HOME=$DIR PYTHONSTARTUP=
on_terminal() {
	/usr/bin/python3 "$TESTS/terminal.py" "$@"
}
on_terminal "$TESTS/terminal_python.steps" $RUN /usr/bin/python3 -q
on_terminal "$TESTS/terminal_sqlite.steps" $RUN /usr/bin/sqlite3 file.db
# A job that says when it runs: a key before that is the shell's.
printf '#!/bin/sh\necho up; exec "$@"\n' > up; chmod +x up
cat > rc <<E
PS1='$ ' HISTFILE=
PATH+=:$DIR
bind 'set enable-bracketed-paste off'
stopped() { until jobs -s | grep -q .; do sleep 0.05; done > /dev/null 2>&1; jobs; }
E
# Which job is the current one after one has ended is a matter of chance.
on_terminal "$TESTS/terminal_bash.steps" $RUN /bin/bash --rcfile "$DIR/rc" | sed -E "s/(\[[0-9]\]) [0-9]+/\1 PID/; s/^(.\[[0-9]\])[-+ ] /\1 /"
/usr/bin/sqlite3 file.db 'select * from t'
rm -f file.db rc up
