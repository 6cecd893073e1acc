/* Included before every source file of the shipped libraries, which must load with glibc 2.17 and newer.
 *
 * glibc 2.34 moved libdl and libpthread into libc and gave their functions new versions; a library that is built on a newer
 * system would need those. Here each such function is asked for by the version that it has had from the beginning. It lives
 * in libdl.so.2 or libpthread.so.0 of an old system, which NVIDIA's libraries have as dependencies and so we have through them, and in libc of a
 * new one. Which versions a library needs is checked by a test: `objdump -T`. */
#ifndef ISOLATION_GLIBC_2_17_H
#define ISOLATION_GLIBC_2_17_H

#if defined(__x86_64__)
#define FIRST_VERSION "GLIBC_2.2.5"
#elif defined(__aarch64__)
#define FIRST_VERSION "GLIBC_2.17"
#else
#error "x86-64 and AArch64 are the machines that NVIDIA has drivers for"
#endif
#define OLD(function) __asm__(".symver " #function ", " #function "@" FIRST_VERSION);

OLD(dlopen)
OLD(dlsym)
OLD(dlerror)
OLD(pthread_once)
OLD(pthread_create)
OLD(pthread_join)
OLD(pthread_detach)
OLD(pthread_mutex_trylock)
OLD(pthread_key_create)
OLD(pthread_setspecific)
OLD(pthread_getspecific)
OLD(pthread_sigmask)
OLD(pthread_attr_setstacksize)
OLD(sem_post)

#endif
