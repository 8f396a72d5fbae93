// A garbage collector keeps the same when it is told, in a cell, which pages were written to in place of its card table (XOS-05).
// options: --cores 2 --memory 512M
// timeout: 60
#define main collector
#include "../../bench/collector.c"
#undef main

int main(void)
{
	char *arguments[] = {"collector", "check", 0};
	return collector(2, arguments);
}
