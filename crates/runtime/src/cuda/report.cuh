// Reports of failed checks. A kernel never traps. A report in the mailbox is not replaced.

// Returns whether an index is in range. If not, writes a report, unless the mailbox has one.
__device__ __forceinline__ bool check_index(i64 index, const Report& report) {
    if ((u64)index < report.size) return true;
    volatile u64* mailbox = (volatile u64*)report.mailbox;
    if (mailbox[0] == 0) {
        mailbox[1] = (u64)index;
        mailbox[2] = report.site;
        mailbox[3] = report.dim;
        mailbox[4] = report.size;
        __threadfence_system();
        mailbox[0] = report.launch;
    }
    return false;
}
