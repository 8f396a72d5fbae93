# Scripts and the programs that run them: arguments, one interpreter behind another, spaces, no arguments.
# needs: gcc
cat > show.c <<'C'
#include <stdio.h>
#include <sys/auxv.h>
int main(int argc, char **argv)
{
	for (int i = 0; i < argc; i++)
		printf("[%s]", argv[i]);
	printf(" name [%s]\n", (char *)getauxval(AT_EXECFN));
	return argc;
}
C
gcc -O1 -o show show.c
rm show.c
script() { printf '%b' "$2" > "$1"; chmod 755 "$1"; }
script plain "#!$DIR/show\nrest\n"
script argument "#!$DIR/show one\n"
script spaces "#! \t $DIR/show \t one two  three \t \n"
script nested "#!$DIR/argument two\n"
script nested3 "#!$DIR/nested three\n"
script relative "#!./show\n"
script noend "#!$DIR/show end"
script empty "#!\n"
script missing "#!$DIR/nothing\n"
script loop "#!$DIR/loop\n"
script shell "#!/bin/sh\necho \"\$0 \$# \$*\"\nexit 9\n"
script env "#!/usr/bin/env -S bash -e\necho from bash \"\$1\"\nfalse\necho not reached\n"
script none "echo without a line\n"
script four "#!$DIR/nested3 4\n"
script five "#!$DIR/four 5\n"
script six "#!$DIR/five 6\n"
for s in plain argument spaces nested nested3 relative noend shell env; do
	status=0
	$RUN "$DIR/$s" a "b c" "" || status=$?
	echo "$s: $status"
done
status=0; $RUN ./plain || status=$?; echo "no arguments: $status"
# Asked for by a program, so that the errors are exec's own.
cat > try.c <<'C'
#include <errno.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>
int main(int argc, char **argv)
{
	for (int i = 1; i < argc; i++) {
		char *args[] = { "zero", "a", NULL }, *env[] = { NULL };
		volatile int error = 0;
		int status = 0;
		pid_t child = vfork();
		if (!child) {
			execve(argv[i], args, env);
			error = errno;
			_exit(99);
		}
		waitpid(child, &status, 0);
		printf("%s: error %d, status %d\n", argv[i], error, WEXITSTATUS(status));
		fflush(stdout);
	}
	return 0;
}
C
gcc -O1 -o try try.c
rm try.c
$RUN ./try ./empty ./missing ./loop ./none ./four ./five ./six ./plain ./relative /etc/passwd . ./no/such
rm show try
