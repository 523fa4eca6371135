package io.kvmessenger.bindings;

import java.lang.annotation.ElementType;
import java.lang.annotation.Retention;
import java.lang.annotation.RetentionPolicy;
import java.lang.annotation.Target;

/**
 * A function that the library does not export: its address is in a table of operations that the object has, which is
 * the first argument.
 */
@Retention(RetentionPolicy.SOURCE)
@Target(ElementType.METHOD)
public @interface Operation {
    /** Offset of the table's address in the object, in bytes. */
    long table();

    /** Offset of the function's address in the table, in bytes. */
    long offset();

    /**
     * Whether the table begins with its own length: {@code -ENOSYS}, or "", is returned if it ends before the function,
     * if the function is null or if there is no table.
     */
    boolean sized();

    /** Whether the function returns the number of the error: the method returns it below zero. */
    boolean negated() default false;
}
