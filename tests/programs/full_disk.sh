# A disk that fills up behind a program's back: who is told, and what becomes of the files.
# needs: gcc
# timeout: 90
cat > full.c <<'END'
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/wait.h>
#include <unistd.h>

static char b[1 << 20];
enum { FILES = 6 };

// Was all of it taken, as far as one is told?
static int writes(int f) { return write(f, b, sizeof b) == sizeof b; }
static long size(const char *name) { struct stat s; return stat(name, &s) ? -1 : s.st_size; }
static void part(int f)
{
	long n = write(f, b, sizeof b);
	printf("%s, position and size %s", n > 0 && n < (long)sizeof b ? "a part" : n < 0 ? strerror(errno) : "all",
		lseek(f, 0, SEEK_CUR) == n && size("part") == n ? "too" : "not");
	printf(", then %s\n", write(f, b, sizeof b) < 0 ? strerror(errno) : "more");
	close(f), unlink("part");
}
int main(void)
{
	memset(b, 'x', sizeof b);
	int f = open("good", O_CREAT | O_WRONLY, 0600);
	write(f, "good", 4), close(f);
	// They are opened while there is room.
	int files[FILES];
	for (int i = 0; i < FILES; i++)
		files[i] = open((char[]){'a' + i, 0}, O_CREAT | O_RDWR, 0600);
	f = open("filler", O_CREAT | O_WRONLY, 0600);
	struct statfs s;
	fstatfs(f, &s);
	for (long long left = (long long)s.f_bavail * s.f_bsize - 400000; left > 0; left -= sizeof b)
		write(f, b, left < (long long)sizeof b ? left : sizeof b);
	printf("filler %d\n", fsync(f));
	for (int i = 0; i < FILES; i++) {
		char name[] = {'a' + i, 0};
		int g = files[i], told = !writes(g), status = 0;
		switch (i) {
		case 0: {
			// Over a good file comes a whole one, or none.
			int renamed = !rename(name, "good");
			printf("rename: %d\n", told || (renamed ? size("good") == sizeof b : size("good") == 4));
			break;
		}
		case 1:
			sync();
			printf("sync, fchmod, ftruncate: %d %d", fchmod(g, 0644), ftruncate(g, 100));
			break;
		case 2: {
			// Its own to be told of: another one who opens it.
			int h = open(name, O_WRONLY);
			printf("O_TRUNC: %d", open(name, O_WRONLY | O_TRUNC) < 0);
			close(h);
			break;
		}
		case 3: {
			struct flock l = {.l_type = F_WRLCK, .l_len = 1};
			fcntl(g, F_SETLK, &l);
			l.l_start = 5, fcntl(g, F_SETLK, &l);
			l.l_type = F_UNLCK;
			printf("unlock: %d", fcntl(g, F_SETLK, &l));
			break;
		}
		case 4:
			fflush(stdout);
			if (!fork())
				_exit(close(g) < 0);
			wait(&status);
			printf("a copy is closed");
			break;
		case 5:
			usleep(300000);
			printf("written behind");
			break;
		}
		if (i) {
			printf(", fsync tells: %d", told | fsync(g) < 0);
			printf(", again %d", fsync(g));
			printf(", close %d\n", close(g));
		}
		unlink(name);
	}
	close(files[0]), unlink("good");
	part(open("part", O_CREAT | O_WRONLY, 0600));
	part(open("part", O_CREAT | O_WRONLY | O_APPEND, 0600));
	// What a file that is gone had is free at once: removed, or another one in its place.
	int room = 0;
	for (int i = 0; i < 40; i++) {
		f = open("part", O_CREAT | O_WRONLY, 0600);
		room += write(f, b, 300000) == 300000 && fsync(f) == 0;
		close(f);
		if (i % 2)
			rename("empty", "part");
		unlink("part");
		close(open("empty", O_CREAT | O_WRONLY, 0600));
	}
	printf("room for %d\n", room);
}
END
gcc -O1 -w -o full full.c
mkdir small; mount -t tmpfs -o size=300m,mode=755 tmpfs small
trap 'umount "$DIR/small"' EXIT
if [ $SIDE = cell ]; then RUN="${RUN% --} --volume $DIR/small:$DIR/small --"; fi
$RUN sh -c 'cd small; ../full'
