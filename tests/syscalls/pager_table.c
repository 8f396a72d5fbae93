// A table whose pages are computed when they are touched, and a file that is read by large pieces, come to the same by a pager as without
// one (XOS-08).
// timeout: 60
#define TABLE_MIB 16
#define main pager
#include "../../bench/pager.c"
#undef main

int main(void)
{
	char *arguments[] = {"pager", "check", ".", 0};
	return pager(3, arguments);
}
