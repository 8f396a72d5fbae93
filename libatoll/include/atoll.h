/* What a program can say to the Atoll cell that it runs in, and Linux has no call for.
 *
 * Outside of a cell all of this does nothing and says that it worked: a program that uses it runs on Linux as it is.
 * Compile libatoll/atoll.c with your program, or link with libatoll.a, which `cargo xtask build` makes of it.
 *
 * An *activity* is what use is charged to: processor time, messages and bytes (docs/grid.md). Every process has one; with these
 * calls a program makes others below it, for whatever it works for: a connection, a query, a customer. `atoll stat` shows
 * them, as does /proc/atoll/activities. For the scheduler they are all of their process's class.
 */
#ifndef ATOLL_H
#define ATOLL_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* An activity of this process. 0: none, which is what there is outside of a cell. */
typedef int64_t atoll_activity;

/* 1 in a cell, 0 elsewhere. */
int atoll_in_cell(void);

/* Makes an activity. The name has 1 to 40 bytes. -1 and errno: EINVAL, a name that can't be; ENOSPC, there are as many
 * activities as a cell can have. Then the program goes on as before: entering, leaving and ending -1 fails with EINVAL, and
 * nothing is lost from the books. */
atoll_activity atoll_activity_create(const char *name);

/* From now on the calling thread works for it, and so do threads that it makes. One can be entered within another, 16
 * deep. 0, or -1 and errno: EINVAL, it has ended, or is another process's; ENOSPC, that is too deep. */
int atoll_activity_enter(atoll_activity activity);

/* The calling thread works for what it worked for before it entered. -1 and EINVAL: it is not this that it entered last. */
int atoll_activity_leave(atoll_activity activity);

/* Nobody can enter it any more, and when the last thread has left, what it has used is added to its process. -1 and
 * EINVAL: it has ended before. The end of the process and exec end all of its activities. */
int atoll_activity_end(atoll_activity activity);

/* The activity that the calling thread entered last and has not left; 0: none. */
atoll_activity atoll_activity_current(void);

#ifdef __cplusplus
}
#endif

#endif
