package hadron;

import java.util.ArrayList;
import java.util.Collections;
import java.util.Iterator;

import org.apache.spark.TaskContext;
import org.apache.spark.api.java.function.FlatMapFunction;

/** The rows of a partition; of one that raises, only what it raised, as text: Spark would end all
    other tasks of the job. Spark's own compiler, which this is for, knows no generics. */
public class Caught implements FlatMapFunction {
    private static final int MOST_CAUSES = 10;

    public Iterator call(Object given) throws Exception {
        ArrayList kept = new ArrayList();
        try {
            Iterator rows = (Iterator) given;
            while (rows.hasNext()) {
                kept.add(rows.next());
            }
        } catch (Exception error) {
            if (TaskContext.get().isInterrupted()) {
                throw error;
            }
            return Collections.singletonList(text(error)).iterator();
        }
        return kept.iterator();
    }

    private static String text(Throwable error) {
        StringBuilder text = new StringBuilder();
        Throwable cause = error;
        for (int i = 0; cause != null && i < MOST_CAUSES; i++) {
            text.append(i == 0 ? "" : "\nCaused by: ").append(cause);
            cause = cause.getCause();
        }
        return text.toString();
    }
}
