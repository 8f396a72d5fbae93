// SEEK_DATA and SEEK_HOLE, holes made and filled, in a volume and in memory. And modes under no mask.
#include "case.h"

#define KIB(n) ((off_t)(n) << 10)

static void map_of(const char *what, int fd)
{
	off_t end = lseek(fd, 0, SEEK_END), at = 0;
	printf("%s (%ld):", what, (long)end);
	while (at < end) {
		off_t data = lseek(fd, at, SEEK_DATA);
		if (data == -1) {
			printf(" %s", err_(errno));
			break;
		}
		off_t hole = lseek(fd, data, SEEK_HOLE);
		printf(" %ld-%ld", (long)data, (long)hole);
		at = hole;
	}
	puts("");
}

static void all(void)
{
	int fd = open("f", O_CREAT | O_RDWR, 0600);
	V(lseek(fd, 0, SEEK_DATA));
	V(lseek(fd, 0, SEEK_HOLE));
	map_of("empty", fd);
	V(ftruncate(fd, KIB(1024)));
	map_of("one hole", fd);
	V(lseek(fd, 0, SEEK_HOLE));
	V(pwrite(fd, "x", 1, KIB(256)));
	map_of("one byte", fd);
	V(lseek(fd, KIB(256) + 100, SEEK_DATA));
	V(lseek(fd, KIB(256) + 100, SEEK_HOLE));
	V(lseek(fd, KIB(300), SEEK_DATA));
	V(lseek(fd, KIB(300), SEEK_HOLE));
	V(pwrite(fd, "x", 1, KIB(640)));
	V(pwrite(fd, "y", 1, 0));
	map_of("three", fd);
	V(lseek(fd, KIB(1024), SEEK_HOLE));
	V(lseek(fd, KIB(1024) - 1, SEEK_HOLE));
	V(lseek(fd, -1, SEEK_DATA));
	V(lseek(fd, 0, 5));
	V(lseek(fd, 77, SEEK_SET));
	V(lseek(fd, KIB(2000), SEEK_DATA));
	V(lseek(fd, 0, SEEK_CUR));
	char *block = calloc(1, KIB(64));
	memset(block, 'b', KIB(64));
	V(pwrite(fd, block, KIB(64), KIB(128)));
	map_of("a block more", fd);
	V(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, KIB(128), KIB(64)));
	map_of("punched", fd);
	V(pread(fd, block, KIB(64), KIB(128)));
	P(block[0] + block[KIB(64) - 1]);
	V(ftruncate(fd, KIB(512)));
	map_of("cut", fd);
	V(pwrite(fd, "end", 3, KIB(512)));
	map_of("longer", fd);
	close(fd);
	fd = open("f", O_RDONLY);
	map_of("opened again", fd);
	close(fd);
	unlink("f");

	SECTION("modes");
	umask(0);
	struct stat s;
	mkdir("m", 0777);
	stat("m", &s);
	X(s.st_mode);
	rmdir("m");
	close(open("m", O_CREAT | O_WRONLY, 0666));
	stat("m", &s);
	X(s.st_mode);
	unlink("m");
	mkfifo("m", 0622);
	stat("m", &s);
	X(s.st_mode);
	unlink("m");
	umask(022);
}

int main(void)
{
	SECTION("volume");
	all();
	SECTION("memory");
	char tmp[] = "/tmp/holes-XXXXXX";
	if (chdir(mkdtemp(tmp)))
		return 1;
	all();
	rmdir(tmp);
	return 0;
}
