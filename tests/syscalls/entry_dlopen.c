// System calls in a library that is loaded later are rewritten when it is mapped.
// library: -DLIBRARY
// min-rewritten-percent: 99
#include <dlfcn.h>
#include <stdio.h>
#include <unistd.h>

#ifdef LIBRARY
long call_directly(void)
{
	long ret;
	asm volatile("mov $110, %%eax\n\tsyscall" : "=a"(ret) : : "rcx", "r11", "memory");
	return ret;
}

long call_with(long number)
{
	long ret;
	asm volatile("syscall" : "=a"(ret) : "a"(number) : "rcx", "r11", "memory");
	return ret < 0 && ret > -4096 ? -1 : ret;
}
#else
int main(void)
{
	void *library = dlopen("../../library.so", RTLD_NOW);
	if (!library) {
		puts(dlerror());
		return 1;
	}
	long (*directly)(void) = dlsym(library, "call_directly");
	long (*with)(long) = dlsym(library, "call_with");
	long parent = getppid(), good = 0;
	for (int i = 0; i < 5000; i++)
		good += directly() == parent && with(110) == parent;
	printf("%ld\n", good);
	// Gone and back.
	dlclose(library);
	library = dlopen("../../library.so", RTLD_LAZY);
	directly = dlsym(library, "call_directly");
	for (int i = 0; i < 5000; i++)
		good += directly() == parent;
	printf("%ld\n", good);
	return 0;
}
#endif
