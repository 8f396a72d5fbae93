# needs: python3 sqlite3
# Interactive programs on a terminal: prompt, line editing, history, window
# size, Ctrl-C and Ctrl-D, and the terminal's settings at the end.
# timeout: 90
export TERM=xterm INPUTRC=/dev/null HOME=$DIR PYTHONSTARTUP=
on_terminal() {
	/usr/bin/python3 "$TESTS/terminal.py" "$@"
}
on_terminal "$TESTS/terminal_python.steps" $RUN /usr/bin/python3 -q
on_terminal "$TESTS/terminal_sqlite.steps" $RUN /usr/bin/sqlite3 file.db
/usr/bin/sqlite3 file.db 'select * from t'
rm -f file.db
