package io.kvmessenger.bindings;

import java.lang.annotation.ElementType;
import java.lang.annotation.Retention;
import java.lang.annotation.RetentionPolicy;
import java.lang.annotation.Target;

/** How a method's function is called, where its name and parameters do not say it. */
@Retention(RetentionPolicy.SOURCE)
@Target(ElementType.METHOD)
public @interface C {
    /**
     * The call, as {@code long syscall(434L, (long) pid, 0L)}: the result's type, if it is another one than the
     * method's, the function's name, and its arguments: parameters, literals, or either behind a cast. "" for the
     * method's own name and parameters.
     */
    String value() default "";

    /** The number of arguments before those that C declares by "..."; 0 if the function is not variadic. */
    int variadicAfter() default 0;

    /** Whether older libraries lack the function; its method returns {@link #otherwise} then. */
    boolean optional() default false;

    /** What the method returns where the library lacks the function. */
    int otherwise() default 0;
}
