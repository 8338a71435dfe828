/* Some virtual machines announce AMX and hide how large its tiles are: oneDNN, which asks, then cannot compute in 16
   bits, or traps. */

#ifdef __x86_64__
#include <cpuid.h>

int fedssa_amx_is_broken(void) {
    unsigned a, b, c, d;
    int announced = __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d >> 24 & 1); /* AMX-TILE */
    return announced && !(__get_cpuid_count(0x1d, 0, &a, &b, &c, &d) && a);   /* a: the largest palette of tiles */
}
#else
int fedssa_amx_is_broken(void) { return 0; }
#endif
